package proxy

import (
	"net/http"
	"slices"

	"github.com/cay-run/cay/api/proto/filesystem/filesystemconnect"
	"github.com/cay-run/cay/api/proto/process/processconnect"
	"github.com/cay-run/cay/internal/guest"
)

// changesFiles are the agent's calls, beside those of plain files, that change
// a sandbox and start no program.
var changesFiles = []string{
	filesystemconnect.FilesystemMakeDirProcedure,
	filesystemconnect.FilesystemMoveProcedure,
	filesystemconnect.FilesystemRemoveProcedure,
	guest.FilesPath, guest.ComposePath, guest.TarPath,
}

// use tells of a request that may change the sandbox. Meanwhile the sandbox may
// have got another instance; reach says what it returns.
func (p *Proxy) use(w http.ResponseWriter, r *http.Request, at place, target Target, l *upstream) (Target, *upstream, error) {
	change, command := changes(r, at.port)
	if !change || !opensAgent(r, target.AccessToken) {
		return target, l, nil
	}
	p.cfg.Used(r.Context(), at.id, command)
	if !command {
		return target, l, nil
	}
	return p.reach(w, r, at)
}

// changes reports whether a request may change a sandbox, and whether it is a
// command. Requests to the servers of a sandbox's users count for nothing.
func changes(r *http.Request, port int) (change, command bool) {
	if r.Method != http.MethodPost && r.Method != http.MethodPut {
		return false, false
	}
	switch path := r.URL.Path; port {
	case guest.AgentPort:
		command = path == processconnect.ProcessStartProcedure
		return command || slices.Contains(changesFiles, path), command
	case guest.InterpPort:
		return path == guest.ExecutePath, path == guest.ExecutePath
	}
	return false, false
}
