package fs

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/cay-run/cay/api/proto/filesystem"
	"github.com/cay-run/cay/internal/inside/agent/user"
)

// emptyDirSize is what directories are said to measure where the file system
// gives them no size.
const emptyDirSize = 4096

// describe returns the entry of path, without following a final link.
func describe(path string, names user.Names) (*pb.EntryInfo, error) {
	st, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	return entry(path, st, names), nil
}

// entry describes what Lstat said of path.
func entry(path string, st fs.FileInfo, names user.Names) *pb.EntryInfo {
	e := &pb.EntryInfo{
		Name:         filepath.Base(path),
		Type:         fileType(st.Mode()),
		Path:         path,
		Size:         st.Size(),
		Mode:         uint32(st.Mode().Perm()),
		Permissions:  st.Mode().String(),
		ModifiedTime: timestamp(st.ModTime()),
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		e.Owner = names.User(sys.Uid)
		e.Group = names.Group(sys.Gid)
	}
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		resolveLink(e)
		return e
	case st.IsDir() && e.Size == 0:
		e.Size = emptyDirSize
	}
	if st.IsDir() || st.Mode().IsRegular() {
		e.Metadata = readMetadata(path)
	}
	return e
}

// resolveLink says where a symbolic link leads and, where that exists, what
// is there. A dangling link stays a link.
func resolveLink(e *pb.EntryInfo) {
	e.IsSymlink = true
	if target, err := filepath.EvalSymlinks(e.Path); err == nil {
		if st, err := os.Stat(target); err == nil {
			e.Type = fileType(st.Mode())
			e.SymlinkTarget = &target
			return
		}
	}
	target, err := os.Readlink(e.Path)
	if err != nil {
		return
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(e.Path), target)
	}
	e.SymlinkTarget = &target
}

func fileType(m fs.FileMode) pb.FileType {
	switch {
	case m.IsDir():
		return pb.FileType_FILE_TYPE_DIRECTORY
	case m&fs.ModeSymlink != 0:
		return pb.FileType_FILE_TYPE_SYMLINK
	case m.IsRegular():
		return pb.FileType_FILE_TYPE_FILE
	}
	return pb.FileType_FILE_TYPE_UNSPECIFIED
}

// timestamp keeps to the years that the wire can say.
func timestamp(t time.Time) *timestamppb.Timestamp {
	ts := timestamppb.New(t)
	if ts.CheckValid() != nil {
		return timestamppb.New(time.Unix(0, 0))
	}
	return ts
}
