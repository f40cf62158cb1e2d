package client

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/cay-run/cay/api/proto/filesystem"
	"github.com/cay-run/cay/api/proto/filesystem/filesystemconnect"
)

// Entry is something in the sandbox's file system.
type Entry struct {
	Name     string    `json:"name"`
	Path     string    `json:"path"` // absolute
	Dir      bool      `json:"dir"`  // a link to a directory is one too
	Size     int64     `json:"size"` // bytes
	Mode     string    `json:"mode"` // as ls -l has it
	Owner    string    `json:"owner"`
	Group    string    `json:"group"`
	Modified time.Time `json:"modified"`
	Target   string    `json:"target,omitempty"` // of a symbolic link
}

// Stat describes what is at a path of the sandbox. NotFound when there is
// nothing.
func (s *Sandbox) Stat(ctx context.Context, path, user string) (Entry, error) {
	out, err := s.filesystem(user).Stat(ctx, connect.NewRequest(&filesystem.StatRequest{Path: path}))
	if err != nil {
		return Entry{}, s.rpcError(ctx, err)
	}
	return entryOf(out.Msg.GetEntry()), nil
}

// ListDir lists a directory down to a depth; 1 is what lies in it.
func (s *Sandbox) ListDir(ctx context.Context, path, user string, depth uint32) ([]Entry, error) {
	out, err := s.filesystem(user).ListDir(ctx, connect.NewRequest(&filesystem.ListDirRequest{Path: path, Depth: depth}))
	if err != nil {
		return nil, s.rpcError(ctx, err)
	}
	list := make([]Entry, 0, len(out.Msg.GetEntries()))
	for _, e := range out.Msg.GetEntries() {
		list = append(list, entryOf(e))
	}
	return list, nil
}

// MakeDir makes a directory and those above it. Conflict when it is there.
func (s *Sandbox) MakeDir(ctx context.Context, path, user string) error {
	_, err := s.filesystem(user).MakeDir(ctx, connect.NewRequest(&filesystem.MakeDirRequest{Path: path}))
	return s.rpcError(ctx, err)
}

// Move renames a path.
func (s *Sandbox) Move(ctx context.Context, from, to, user string) (Entry, error) {
	out, err := s.filesystem(user).Move(ctx, connect.NewRequest(&filesystem.MoveRequest{Source: from, Destination: to}))
	if err != nil {
		return Entry{}, s.rpcError(ctx, err)
	}
	return entryOf(out.Msg.GetEntry()), nil
}

// Remove removes a path and all below it.
func (s *Sandbox) Remove(ctx context.Context, path, user string) error {
	_, err := s.filesystem(user).Remove(ctx, connect.NewRequest(&filesystem.RemoveRequest{Path: path}))
	return s.rpcError(ctx, err)
}

func (s *Sandbox) filesystem(user string) filesystemconnect.FilesystemClient {
	return filesystemconnect.NewFilesystemClient(s.client.cfg.HTTP, s.client.cfg.SandboxURL, s.as(user))
}

func entryOf(e *filesystem.EntryInfo) Entry {
	return Entry{
		Name: e.GetName(), Path: e.GetPath(), Dir: e.GetType() == filesystem.FileType_FILE_TYPE_DIRECTORY, Size: e.GetSize(), Mode: e.GetPermissions(),
		Owner: e.GetOwner(), Group: e.GetGroup(), Modified: e.GetModifiedTime().AsTime(), Target: e.GetSymlinkTarget(),
	}
}
