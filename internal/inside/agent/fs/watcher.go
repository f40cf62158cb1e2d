package fs

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/cay-run/cay/api/proto/filesystem"
	"github.com/cay-run/cay/internal/inside/agent/fs/watch"
	"github.com/cay-run/cay/internal/inside/agent/user"
	"github.com/cay-run/cay/internal/inside/agent/wire"
)

// maxWatchers bounds the watchers of both kinds: each holds an inotify
// instance and a queue.
const maxWatchers = 256

// remoteFileSystems are those whose changes inotify does not see, by the
// magic number of statfs. 9p is none of them: it is what gVisor calls the
// sandbox's own disk.
var remoteFileSystems = map[uint32]string{
	unix.NFS_SUPER_MAGIC:   "nfs",
	unix.SMB_SUPER_MAGIC:   "smb",
	unix.CIFS_SUPER_MAGIC:  "cifs",
	unix.SMB2_SUPER_MAGIC:  "smb2",
	unix.FUSE_SUPER_MAGIC:  "fuse",
	unix.CEPH_SUPER_MAGIC:  "ceph",
	unix.AFS_SUPER_MAGIC:   "afs",
	unix.CODA_SUPER_MAGIC:  "coda",
	unix.OCFS2_SUPER_MAGIC: "ocfs2",
}

// watchRequest is what both kinds of watchers are asked with.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
	GetAllowNetworkMounts() bool
}

// source is an open watcher and what its events are made of.
type source struct {
	*watch.Watcher
	root    string
	entries bool
}

// openWatch opens a watcher. It counts until s.closeWatch.
func (s *Service) openWatch(h http.Header, req watchRequest) (source, error) {
	_, path, err := s.locate(h, req.GetPath())
	if err != nil {
		return source{}, err
	}
	st, err := os.Stat(path)
	if err != nil {
		return source{}, lookFault(path, err)
	}
	if !st.IsDir() {
		return source{}, invalid("path '%s' is not a directory", path)
	}
	if !req.GetAllowNetworkMounts() {
		var sys unix.Statfs_t
		if err := unix.Statfs(path, &sys); err != nil {
			return source{}, lookFault(path, err)
		}
		if name, remote := remoteFileSystems[uint32(sys.Type)]; remote {
			return source{}, invalid("path '%s' is on a network file system (%s), whose changes may go unseen", path, name)
		}
	}
	if !s.reserve() {
		return source{}, tooMany("%d watchers are open, which is the limit", maxWatchers)
	}
	w, err := watch.Open(path, req.GetRecursive())
	if err != nil {
		s.release()
		return source{}, watchFault(path, err)
	}
	return source{Watcher: w, root: path, entries: req.GetIncludeEntry()}, nil
}

func (s *Service) closeWatch(w source) {
	_ = w.Close() // inotify has nothing to flush
	s.release()
}

func (s *Service) reserve() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= maxWatchers {
		return false
	}
	s.open++
	return true
}

func (s *Service) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
}

// watchFault places the failure of a watcher.
func watchFault(path string, err error) error {
	switch {
	case errors.Is(err, watch.ErrLost):
		return tooMany("watching '%s': %s", path, err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EMFILE):
		return tooMany("the system's limit of watches is reached")
	}
	return lookFault(path, err)
}

// take returns what a watcher collected, as the wire has it.
func (w source) take(users user.DB) ([]*pb.FilesystemEvent, error) {
	events, err := w.Take()
	if err != nil {
		return nil, watchFault(w.root, err)
	}
	if len(events) == 0 {
		return nil, nil
	}
	var names user.Names
	if w.entries {
		names = users.Names()
	}
	out := make([]*pb.FilesystemEvent, len(events))
	for i, e := range events {
		out[i] = &pb.FilesystemEvent{Name: e.Name, Type: eventTypes[e.Op]}
		if w.entries && e.Op&(watch.Create|watch.Write|watch.Chmod) != 0 {
			if entry, err := describe(filepath.Join(w.root, e.Name), names); err == nil {
				out[i].Entry = entry
			}
		}
	}
	return out, nil
}

var eventTypes = map[watch.Op]pb.EventType{
	watch.Create: pb.EventType_EVENT_TYPE_CREATE,
	watch.Rename: pb.EventType_EVENT_TYPE_RENAME,
	watch.Chmod:  pb.EventType_EVENT_TYPE_CHMOD,
	watch.Write:  pb.EventType_EVENT_TYPE_WRITE,
	watch.Remove: pb.EventType_EVENT_TYPE_REMOVE,
}

// WatchDir implements filesystemconnect.FilesystemHandler.
func (s *Service) WatchDir(ctx context.Context, req *connect.Request[pb.WatchDirRequest], stream *connect.ServerStream[pb.WatchDirResponse]) error {
	w, err := s.openWatch(req.Header(), req.Msg)
	if err != nil {
		return rpcError(err)
	}
	defer s.closeWatch(w)
	start := &pb.WatchDirResponse{Event: &pb.WatchDirResponse_Start{Start: &pb.WatchDirResponse_StartEvent{}}}
	if err := stream.Send(start); err != nil {
		return err
	}
	alive := time.NewTicker(wire.Keepalive(req.Header()))
	defer alive.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-alive.C:
			err = stream.Send(&pb.WatchDirResponse{Event: &pb.WatchDirResponse_Keepalive{Keepalive: &pb.WatchDirResponse_KeepAlive{}}})
		case <-w.Ready():
			err = s.forward(w, stream)
		}
		if err != nil {
			return err
		}
	}
}

// forward sends what a watcher collected.
func (s *Service) forward(w source, stream *connect.ServerStream[pb.WatchDirResponse]) error {
	events, err := w.take(s.users)
	if err != nil {
		return rpcError(err)
	}
	for _, e := range events {
		if err := stream.Send(&pb.WatchDirResponse{Event: &pb.WatchDirResponse_Filesystem{Filesystem: e}}); err != nil {
			return err
		}
	}
	return nil
}

// CreateWatcher implements filesystemconnect.FilesystemHandler.
func (s *Service) CreateWatcher(_ context.Context, req *connect.Request[pb.CreateWatcherRequest]) (*connect.Response[pb.CreateWatcherResponse], error) {
	w, err := s.openWatch(req.Header(), req.Msg)
	if err != nil {
		return nil, rpcError(err)
	}
	id := "w" + rand.Text()
	s.mu.Lock()
	s.watchers[id] = w
	s.mu.Unlock()
	return connect.NewResponse(&pb.CreateWatcherResponse{WatcherId: id}), nil
}

// GetWatcherEvents implements filesystemconnect.FilesystemHandler.
func (s *Service) GetWatcherEvents(_ context.Context, req *connect.Request[pb.GetWatcherEventsRequest]) (*connect.Response[pb.GetWatcherEventsResponse], error) {
	id := req.Msg.GetWatcherId()
	s.mu.Lock()
	w, ok := s.watchers[id]
	s.mu.Unlock()
	if !ok {
		return nil, noWatcher(id)
	}
	events, err := w.take(s.users)
	if err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&pb.GetWatcherEventsResponse{Events: events}), nil
}

// RemoveWatcher implements filesystemconnect.FilesystemHandler.
func (s *Service) RemoveWatcher(_ context.Context, req *connect.Request[pb.RemoveWatcherRequest]) (*connect.Response[pb.RemoveWatcherResponse], error) {
	id := req.Msg.GetWatcherId()
	s.mu.Lock()
	w, ok := s.watchers[id]
	delete(s.watchers, id)
	s.mu.Unlock()
	if !ok {
		return nil, noWatcher(id)
	}
	s.closeWatch(w)
	return connect.NewResponse(&pb.RemoveWatcherResponse{}), nil
}

func noWatcher(id string) error {
	return connect.NewError(connect.CodeNotFound, errors.New("watcher not found: "+id))
}
