package fs

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"connectrpc.com/connect"

	pb "github.com/cay-run/cay/api/proto/filesystem"
	"github.com/cay-run/cay/internal/inside/agent/user"
	"github.com/cay-run/cay/internal/inside/agent/wire"
)

// maxEntries bounds a listing: an answer is one message, held in memory.
const maxEntries = 200_000

// locate finds the account that a call's headers name and resolves its path.
func (s *Service) locate(h http.Header, path string) (user.User, string, error) {
	u, err := s.account(wire.User(h))
	if err != nil {
		return u, "", err
	}
	abs, err := resolve(u, path, s.startDir(u))
	return u, abs, err
}

// startDir is what an empty path means to an account.
func (s *Service) startDir(u user.User) string {
	return s.users.StartDir(u, s.defaultUser(), s.defaultDir())
}

// Stat implements filesystemconnect.FilesystemHandler.
func (s *Service) Stat(_ context.Context, req *connect.Request[pb.StatRequest]) (*connect.Response[pb.StatResponse], error) {
	_, path, err := s.locate(req.Header(), req.Msg.GetPath())
	if err != nil {
		return nil, rpcError(err)
	}
	e, err := describe(path, s.users.Names())
	if err != nil {
		return nil, rpcError(lookFault(path, err))
	}
	return connect.NewResponse(&pb.StatResponse{Entry: e}), nil
}

// lookFault is pathFault for operations that only look: what lies below a
// file does not exist.
func lookFault(path string, err error) error {
	if errors.Is(err, errNotDir) {
		return missing(path)
	}
	return pathFault(path, err)
}

// MakeDir implements filesystemconnect.FilesystemHandler.
func (s *Service) MakeDir(_ context.Context, req *connect.Request[pb.MakeDirRequest]) (*connect.Response[pb.MakeDirResponse], error) {
	u, path, err := s.locate(req.Header(), req.Msg.GetPath())
	if err != nil {
		return nil, rpcError(err)
	}
	made, err := makeDirs(path, u)
	if err != nil {
		return nil, rpcError(err)
	}
	if !made {
		return nil, connect.NewError(connect.CodeAlreadyExists, errors.New("directory already exists: "+path))
	}
	e, err := describe(path, s.users.Names())
	if err != nil {
		return nil, rpcError(pathFault(path, err))
	}
	return connect.NewResponse(&pb.MakeDirResponse{Entry: e}), nil
}

// makeDirs makes a directory and its parents, all owned by u. It reports
// whether the directory is new.
func makeDirs(path string, u user.User) (bool, error) {
	st, err := os.Stat(path)
	if err == nil {
		if !st.IsDir() {
			return false, invalid("path '%s' exists and is not a directory", path)
		}
		return false, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, pathFault(path, err)
	}
	if parent := filepath.Dir(path); parent != path {
		if _, err := makeDirs(parent, u); err != nil {
			return false, err
		}
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		if st, serr := os.Stat(path); serr == nil && st.IsDir() {
			return false, nil // another caller was faster
		}
		return false, pathFault(path, err)
	}
	if err := os.Chown(path, int(u.UID), int(u.GID)); err != nil {
		return false, pathFault(path, err)
	}
	return true, nil
}

// Move implements filesystemconnect.FilesystemHandler.
func (s *Service) Move(_ context.Context, req *connect.Request[pb.MoveRequest]) (*connect.Response[pb.MoveResponse], error) {
	u, from, err := s.locate(req.Header(), req.Msg.GetSource())
	if err != nil {
		return nil, rpcError(err)
	}
	_, to, err := s.locate(req.Header(), req.Msg.GetDestination())
	if err != nil {
		return nil, rpcError(err)
	}
	if req.Msg.GetSource() == "" || req.Msg.GetDestination() == "" {
		return nil, rpcError(invalid("a move needs a source and a destination"))
	}
	if err := move(from, to, u); err != nil {
		return nil, rpcError(err)
	}
	e, err := describe(to, s.users.Names())
	if err != nil {
		return nil, rpcError(pathFault(to, err))
	}
	return connect.NewResponse(&pb.MoveResponse{Entry: e}), nil
}

// Remove implements filesystemconnect.FilesystemHandler.
func (s *Service) Remove(_ context.Context, req *connect.Request[pb.RemoveRequest]) (*connect.Response[pb.RemoveResponse], error) {
	_, path, err := s.locate(req.Header(), req.Msg.GetPath())
	if err != nil {
		return nil, rpcError(err)
	}
	// A field that a client forgot must not cost the home directory.
	if req.Msg.GetPath() == "" || path == "/" {
		return nil, rpcError(invalid("a removal needs a path other than '/'"))
	}
	if err := os.RemoveAll(path); err != nil && !errors.Is(err, errNotDir) {
		return nil, rpcError(pathFault(path, err))
	}
	return connect.NewResponse(&pb.RemoveResponse{}), nil
}

// ListDir implements filesystemconnect.FilesystemHandler.
func (s *Service) ListDir(ctx context.Context, req *connect.Request[pb.ListDirRequest]) (*connect.Response[pb.ListDirResponse], error) {
	_, path, err := s.locate(req.Header(), req.Msg.GetPath())
	if err != nil {
		return nil, rpcError(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		return nil, rpcError(lookFault(path, err))
	}
	if !st.IsDir() {
		return nil, rpcError(invalid("path '%s' is not a directory", path))
	}
	l := listing{ctx: ctx, names: s.users.Names()}
	if err := l.walk(path, max(req.Msg.GetDepth(), 1)); err != nil {
		return nil, rpcError(pathFault(path, err))
	}
	return connect.NewResponse(&pb.ListDirResponse{Entries: l.entries}), nil
}

// listing is a walk in progress: each directory before what is in it, names
// in order.
type listing struct {
	ctx     context.Context
	names   user.Names
	entries []*pb.EntryInfo
}

func (l *listing) walk(dir string, depth uint32) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	items, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, item := range items {
		if len(l.entries) >= maxEntries {
			return tooMany("the listing has more than %d entries; list with a smaller depth", maxEntries)
		}
		path := filepath.Join(dir, item.Name())
		st, err := item.Info()
		if err != nil {
			continue // gone since
		}
		l.entries = append(l.entries, entry(path, st, l.names))
		if !st.IsDir() || depth <= 1 {
			continue
		}
		// A directory that cannot be read, or is gone, has no children to show.
		var f *fault
		if err := l.walk(path, depth-1); errors.As(err, &f) || l.ctx.Err() != nil {
			return err
		}
	}
	return nil
}
