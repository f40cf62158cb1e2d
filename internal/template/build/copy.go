package build

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest/archive"
	"github.com/cay-run/cay/internal/machine/disk"
)

const (
	filesMost = 2_000_000
	whiteout  = ".wh." // begins the names by which a layer says that a file is gone
)

// source says which names of an archive a COPY takes, and where below its
// destination they go.
type source struct {
	base   string // that is stripped; "." for none
	exact  string // the one name that is meant, when there is no pattern
	single bool   // it is one file, which the destination names
}

// newSource reads the first argument of a COPY.
func newSource(src string) (source, error) {
	clean := path.Clean(strings.TrimPrefix(src, "/"))
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return source{}, cay.Errorf(cay.Invalid, "COPY: %.200q is not below the context", src)
	}
	if !strings.ContainsAny(clean, "*?[{!(") {
		return source{base: clean, exact: clean}, nil
	}
	var base []string
	for part := range strings.SplitSeq(clean, "/") {
		if strings.ContainsAny(part, "*?[{!(") {
			break
		}
		base = append(base, part)
	}
	return source{base: path.Join(append([]string{"."}, base...)...)}, nil
}

// rename returns what a name of the archive is called below the destination;
// ok is false for one that is not meant. The destination itself is ".".
func (s source) rename(name string) (string, bool) {
	switch {
	case s.single:
		return path.Base(name), true
	case s.base == ".":
		return name, true
	case name == s.base:
		return ".", true
	}
	rest, ok := strings.CutPrefix(name, s.base+"/")
	return rest, ok
}

// firstNames reads the archive's first names, at most as many as tell a COPY
// of much from one of little. single says that it is one file and nothing else.
func (r *run) firstNames(s cay.BuildStep) (much, single bool, err error) {
	in, err := r.openUpload(r.spec.Team, s.FilesHash)
	if err != nil {
		return false, false, err
	}
	defer in.Close()
	files, dir := 0, false
	t, read, most := tar.NewReader(in), int64(0), int64(r.spec.Limits.DiskMB)<<20
	for files <= graftAbove && (files < 2 || read < scanMost) {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return false, false, badArchive(err)
		}
		if files++; files <= 2 {
			dir = dir || h.Typeflag == tar.TypeDir
		}
		if h.Size > most-read { // its zeros may be packed in very few bytes
			return false, false, cay.Errorf(cay.NoSpace, "the step's files are larger than the disk of the template")
		}
		read += h.Size
	}
	if files == 0 {
		return false, false, cay.Errorf(cay.Invalid, "the archive of the step's files is empty")
	}
	if st, err := os.Stat(r.upload(r.spec.Team, s.FilesHash)); err == nil {
		read = max(read, st.Size())
	}
	return files > graftAbove || read > graftBytes, files == 1 && !dir, nil
}

// scanMost is how many bytes of an archive are read to count its files, when
// it is known whether it is one.
const scanMost = 32 << 20

// copying is a COPY that is under way.
type copying struct {
	from source
	dest string // absolute and clean
	into bool   // it is a directory even if it is not there
	user string
	mode int64  // of all files; negative for their own
	name string // of a single file, where it gets a new one

	// put writes an entry, whose name is below the destination; nil for as it is.
	put func(out *tar.Writer, h *tar.Header) error
}

// target returns the directory that a COPY unpacks into, and the name of a
// single file there. dir is where the destination is, links followed.
func (c copying) target(dir string, there bool) (string, string) {
	if c.from.single && !c.into && !there {
		return path.Dir(dir), path.Base(dir)
	}
	return dir, ""
}

// copyPlan reads a step's arguments and what its archive begins with.
func (r *run) copyPlan(s cay.BuildStep) (c copying, much bool, err error) {
	if c.from, err = newSource(s.Args[0]); err != nil {
		return c, false, err
	}
	dest := expand(s.Args[1], r.lookup)
	c.into = dest == "" || strings.HasSuffix(dest, "/") || path.Base(dest) == "." || path.Base(dest) == ".."
	if !path.IsAbs(dest) {
		dest = path.Join("/", r.state.Dir, dest)
	}
	c.dest, c.user, c.mode = path.Clean(dest), r.state.User, -1
	if len(s.Args) > 2 && s.Args[2] != "" {
		c.user, _, _ = strings.Cut(s.Args[2], ":")
	}
	if len(s.Args) > 3 && s.Args[3] != "" {
		if c.mode, err = strconv.ParseInt(s.Args[3], 8, 32); err != nil || c.mode < 0 || c.mode > 0o7777 {
			return c, false, cay.Errorf(cay.Invalid, "COPY: %.40q is no mode", s.Args[3])
		}
	}
	much, c.from.single, err = r.firstNames(s)
	return c, much, err
}

// copyStep streams the archive into the sandbox, every name where it belongs.
func (r *run) copyStep(ctx context.Context, s cay.BuildStep) error {
	c, _, err := r.copyPlan(s)
	if err != nil {
		return err
	}
	out, err := r.box.shell(ctx, resolveDir, c.dest)
	if err != nil {
		return stepError("COPY", err)
	}
	there, dir, _ := strings.Cut(out, "\n")
	dir, c.name = c.target(cmp.Or(dir, "/"), there == "yes")
	if c.user, err = r.account(ctx, c.user); err != nil {
		return stepError("COPY", err)
	}
	in, err := r.openUpload(r.spec.Team, s.FilesHash)
	if err != nil {
		return err
	}
	defer in.Close()
	archive, pipe := io.Pipe()
	translated := make(chan error, 1)
	go func() {
		err := translate(pipe, in, c, int64(r.spec.Limits.DiskMB)<<20)
		pipe.CloseWithError(err)
		translated <- err
	}()
	err = r.box.unpack(ctx, c.user, dir, archive)
	archive.CloseWithError(io.ErrClosedPipe)
	if terr := <-translated; terr != nil && !errors.Is(terr, io.ErrClosedPipe) {
		return terr // the archive is at fault, not what became of it
	}
	return stepError("COPY", err)
}

// translate rewrites an archive as what is to be unpacked, of at most so many
// bytes.
func translate(w io.Writer, in io.Reader, c copying, most int64) error {
	t, out := tar.NewReader(in), tar.NewWriter(w)
	for count := 0; ; count++ {
		h, err := t.Next()
		if err == io.EOF {
			return out.Close()
		}
		if err != nil {
			return badArchive(err)
		}
		if count >= filesMost {
			return cay.Errorf(cay.Invalid, "the archive has more than %d files", filesMost)
		}
		next, err := c.entry(h)
		if err != nil {
			return err
		}
		if next == nil {
			continue
		}
		if next.Typeflag == tar.TypeReg {
			if most -= h.Size; most < 0 {
				return cay.Errorf(cay.NoSpace, "the step's files are larger than the disk of the template")
			}
		}
		if c.put != nil {
			err = c.put(out, next)
		} else {
			err = out.WriteHeader(next)
		}
		if err != nil {
			return err
		}
		if next.Typeflag == tar.TypeReg {
			if err := pour(out, t); err != nil {
				return err
			}
		}
	}
}

// entry is what becomes of one entry; nil for what is left out.
func (c copying) entry(h *tar.Header) (*tar.Header, error) {
	clean := path.Clean(h.Name)
	if path.IsAbs(clean) || clean == ".." || strings.HasPrefix(clean, "../") {
		return nil, cay.Errorf(cay.Invalid, "the archive has a file outside the context: %.200q", h.Name)
	}
	if archive.Deep(clean) || archive.Deep(h.Linkname) {
		return nil, cay.Errorf(cay.Invalid, "the archive's path %.200q is too long or has too many levels", h.Name)
	}
	to, ok := c.from.rename(clean)
	if !ok || to == "." {
		return nil, nil
	}
	if c.name != "" {
		to = c.name
	}
	if strings.Contains("/"+to, "/"+whiteout) {
		return nil, nil // no layer can hold what is named like a removal
	}
	next := &tar.Header{
		Typeflag: h.Typeflag, Name: to, Mode: h.Mode & 0o777, Size: h.Size, ModTime: h.ModTime,
		Linkname: h.Linkname, Format: tar.FormatPAX,
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		next.Typeflag = tar.TypeReg
	case tar.TypeDir:
		next.Name += "/"
	case tar.TypeSymlink:
	case tar.TypeLink:
		if next.Linkname, ok = c.from.rename(path.Clean(h.Linkname)); !ok {
			return nil, cay.Errorf(cay.Invalid, "the archive links to %.200q, which is not in it", h.Linkname)
		}
	default:
		return nil, nil
	}
	if c.mode >= 0 && h.Typeflag != tar.TypeSymlink {
		next.Mode = c.mode
		if h.Typeflag == tar.TypeDir { // a reader of a directory may enter it
			next.Mode |= c.mode & 0o444 >> 2
		}
	}
	return next, nil
}

// pour copies a content; its error names the side that failed.
func pour(w io.Writer, r io.Reader) error {
	_, read, err := disk.Copy(w, r)
	if read != nil {
		return badArchive(read)
	}
	return err
}

// resolveDir finds a directory, links followed as far as it is there. It
// writes where it is, and whether it is.
const resolveDir = `
d=$1; rest=
while [ ! -d "$d" ]; do
  rest="/${d##*/}$rest"; d=${d%/*}; [ -n "$d" ] || d=/
done
cd "$d"; d=$(pwd -P); [ "$d" != / ] || d=
[ -n "$rest" ] && echo no || echo yes
printf '%s\n' "$d$rest"`

// account finds the name of a user by name or number.
func (r *run) account(ctx context.Context, user string) (string, error) {
	return r.box.shell(ctx, `
name=$(awk -F: -v who="$1" '$1 == who || $3 == who { print $1; exit }' /etc/passwd)
[ -n "$name" ] || { echo "invalid username: '$1'" >&2; exit 1; }
echo "$name"`, user)
}
