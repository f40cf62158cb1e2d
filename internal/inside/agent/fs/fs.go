// Package fs is the files half of the agent: the Connect service
// filesystem.Filesystem and the routes below /files. It serves E2B's wire and
// adds /files/tar, which moves whole trees.
//
// # Tar
//
//	GET  /files/tar?path=<path>&username=<user>
//	POST /files/tar?path=<directory>&username=<user>   (PUT does the same)
//
// GET streams a tar (PAX) of a directory's contents, names relative to it, or
// of one file under its base name. It is gzipped where the client accepts
// that. A connection that breaks before the archive's end marker is an error.
//
// POST unpacks a tar, gzipped where Content-Encoding says so, below the
// directory, which is made if missing. All that it makes belongs to the user;
// set-id bits are dropped. Nothing is ever written outside the directory:
// names that climb out, and directories that are links there, are refused.
// A file or link in the way of a file is replaced. It answers 200 with
// {"entries": n, "bytes": n}; at an error what was unpacked before it stays.
//
// Both take the access token like /files, or a signature whose operation is
// "read-tar" or "write-tar".
package fs

import (
	"log/slog"
	"math"
	"net/http"
	"sync"

	"connectrpc.com/connect"

	pb "github.com/cay-run/cay/api/proto/filesystem"
	"github.com/cay-run/cay/api/proto/filesystem/filesystemconnect"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/inside/agent/user"
	"github.com/cay-run/cay/internal/inside/agent/wire"
)

// bufSize is the unit in which file contents move.
const bufSize = 256 << 10

// maxMessage bounds a request of the Connect service; they hold paths only.
const maxMessage = 1 << 20

// Config is what the service needs of its agent. The functions are called for
// every request, from many goroutines.
type Config struct {
	Users       user.DB
	DefaultUser func() string // the account of calls that name none
	DefaultDir  func() string // what an empty path means; empty: the home directory
	Token       func() string // the access token; empty: none is asked for
	Log         *slog.Logger  // nil: slog.Default()
}

// Service serves the files of one machine.
type Service struct {
	users       user.DB
	defaultUser func() string
	defaultDir  func() string
	token       func() string
	log         *slog.Logger

	mu       sync.Mutex
	open     int // watchers of both kinds
	watchers map[string]source
}

var _ filesystemconnect.FilesystemHandler = (*Service)(nil)

// New returns a service.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return &Service{
		users:       c.Users,
		defaultUser: c.DefaultUser,
		defaultDir:  c.DefaultDir,
		token:       c.Token,
		log:         c.Log,
		watchers:    map[string]source{},
	}
}

// Routes mounts the service. The routes below /files check the access token
// or a signature themselves (OwnAuth); the Connect routes leave that to the
// handler around mux.
func (s *Service) Routes(mux *http.ServeMux, opts ...connect.HandlerOption) {
	opts = append([]connect.HandlerOption{
		connect.WithReadMaxBytes(maxMessage),
		// Clients that offer gzip do not expect it on frames of a stream.
		connect.WithCompressMinBytes(math.MaxInt),
	}, opts...)
	_, rpcs := filesystemconnect.NewFilesystemHandler(s, opts...)
	wire.Mount(mux, pb.File_filesystem_proto, rpcs)
	mux.HandleFunc("GET "+guest.FilesPath, s.plain(s.download))
	mux.HandleFunc("POST "+guest.FilesPath, s.plain(s.upload))
	mux.HandleFunc("POST "+guest.ComposePath, s.plain(s.compose))
	mux.HandleFunc("GET "+guest.TarPath, s.plain(s.pack))
	mux.HandleFunc("POST "+guest.TarPath, s.plain(s.unpack))
	mux.HandleFunc("PUT "+guest.TarPath, s.plain(s.unpack))
}

// OwnAuth reports whether the service itself authorizes the callers of a path,
// because a signature may stand in for the access token there.
func OwnAuth(path string) bool {
	return path == guest.FilesPath || path == guest.ComposePath || path == guest.TarPath
}

// Close ends all polled watchers.
func (s *Service) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, w := range s.watchers {
		delete(s.watchers, id)
		s.open--
		_ = w.Close() // inotify has nothing to flush
	}
}

// account returns the account that a call names, or the default one.
func (s *Service) account(name string) (user.User, error) {
	if name == "" {
		name = s.defaultUser()
	}
	u, err := s.users.Lookup(name)
	if err != nil {
		return user.User{}, accountError(err)
	}
	return u, nil
}
