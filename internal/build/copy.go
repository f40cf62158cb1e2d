package build

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/cay-run/cay"
)

const filesMost = 2_000_000

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

// names reads the archive's first names: enough to tell whether it is one
// file.
func (r *run) firstNames(s cay.BuildStep) (files int, dir bool, err error) {
	in, done, err := r.openUpload(r.spec.Team, s.FilesHash)
	if err != nil {
		return 0, false, err
	}
	defer done()
	t := tar.NewReader(in)
	for files < 2 && !dir {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, false, badArchive(err)
		}
		files++
		dir = h.Typeflag == tar.TypeDir
	}
	if files == 0 {
		return 0, false, cay.Errorf(cay.Invalid, "the archive of the step's files is empty")
	}
	return files, dir, nil
}

// copyStep streams the archive into the sandbox, every name where it belongs.
func (r *run) copyStep(ctx context.Context, s cay.BuildStep) error {
	from, err := newSource(s.Args[0])
	if err != nil {
		return err
	}
	dest := expand(s.Args[1], r.lookup)
	user, mode := r.state.User, int64(-1)
	if len(s.Args) > 2 && s.Args[2] != "" {
		user, _, _ = strings.Cut(s.Args[2], ":")
	}
	if len(s.Args) > 3 && s.Args[3] != "" {
		if mode, err = strconv.ParseInt(s.Args[3], 8, 32); err != nil || mode < 0 || mode > 0o7777 {
			return cay.Errorf(cay.Invalid, "COPY: %.40q is no mode", s.Args[3])
		}
	}
	files, dir, err := r.firstNames(s)
	if err != nil {
		return err
	}
	from.single = files == 1 && !dir
	target, name, err := r.destination(ctx, dest, from.single)
	if err != nil {
		return stepError("COPY", err)
	}
	if user, err = r.account(ctx, user); err != nil {
		return stepError("COPY", err)
	}
	in, done, err := r.openUpload(r.spec.Team, s.FilesHash)
	if err != nil {
		return err
	}
	defer done()
	out, pipe := io.Pipe()
	translated := make(chan error, 1)
	go func() {
		err := translate(pipe, in, from, name, mode, int64(r.spec.Limits.DiskMB)<<20)
		pipe.CloseWithError(err)
		translated <- err
	}()
	err = r.box.unpack(ctx, user, target, out)
	out.CloseWithError(io.ErrClosedPipe)
	if terr := <-translated; terr != nil && !errors.Is(terr, io.ErrClosedPipe) {
		return terr // the archive is at fault, not what became of it
	}
	return stepError("COPY", err)
}

// translate rewrites an archive as what is to be unpacked. name, when not
// empty, is that of the single file.
func translate(w io.Writer, in io.Reader, from source, name string, mode, most int64) error {
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
		clean := path.Clean(h.Name)
		if path.IsAbs(clean) || clean == ".." || strings.HasPrefix(clean, "../") {
			return cay.Errorf(cay.Invalid, "the archive has a file outside the context: %.200q", h.Name)
		}
		to, ok := from.rename(clean)
		if !ok || to == "." {
			continue
		}
		if name != "" {
			to = name
		}
		next := &tar.Header{
			Typeflag: h.Typeflag, Name: to, Mode: h.Mode & 0o777, Size: h.Size, ModTime: h.ModTime,
			Linkname: h.Linkname, Format: tar.FormatPAX,
		}
		switch h.Typeflag {
		case tar.TypeReg, tar.TypeGNUSparse:
			next.Typeflag = tar.TypeReg
			if most -= h.Size; most < 0 {
				return cay.Errorf(cay.NoSpace, "the step's files are larger than the disk of the template")
			}
		case tar.TypeDir:
			next.Name += "/"
		case tar.TypeSymlink:
		case tar.TypeLink:
			if next.Linkname, ok = from.rename(path.Clean(h.Linkname)); !ok {
				return cay.Errorf(cay.Invalid, "the archive links to %.200q, which is not in it", h.Linkname)
			}
		default:
			continue
		}
		if mode >= 0 && h.Typeflag != tar.TypeSymlink {
			next.Mode = mode
			if h.Typeflag == tar.TypeDir { // who may read it may enter it
				next.Mode |= mode & 0o444 >> 2
			}
		}
		if err := out.WriteHeader(next); err != nil {
			return err
		}
		if next.Typeflag == tar.TypeReg {
			if err := pour(out, t); err != nil {
				return err
			}
		}
	}
}

// pour copies a content and tells whose fault it is that it ends.
func pour(w io.Writer, r io.Reader) error {
	in := &witness{Reader: r}
	_, err := io.Copy(w, in)
	if in.err != nil {
		return badArchive(in.err)
	}
	return err
}

type witness struct {
	io.Reader
	err error
}

func (w *witness) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if err != nil && err != io.EOF {
		w.err = err
	}
	return n, err
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

// destination finds the directory that a COPY unpacks into, and the name of a
// single file there.
func (r *run) destination(ctx context.Context, dest string, single bool) (dir, name string, err error) {
	isDir := dest == "" || strings.HasSuffix(dest, "/") || path.Base(dest) == "." || path.Base(dest) == ".."
	if !path.IsAbs(dest) {
		dest = path.Join("/", r.state.Dir, dest)
	}
	dest = path.Clean(dest)
	out, err := r.box.shell(ctx, resolveDir, dest)
	if err != nil {
		return "", "", err
	}
	there, dir, _ := strings.Cut(out, "\n")
	if dir == "" {
		dir = "/"
	}
	if single && !isDir && there == "no" {
		return path.Dir(dir), path.Base(dir), nil
	}
	return dir, "", nil
}

// account finds the name of a user by name or number.
func (r *run) account(ctx context.Context, user string) (string, error) {
	return r.box.shell(ctx, `
name=$(awk -F: -v who="$1" '$1 == who || $3 == who { print $1; exit }' /etc/passwd)
[ -n "$name" ] || { echo "invalid username: '$1'" >&2; exit 1; }
echo "$name"`, user)
}
