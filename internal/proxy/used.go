package proxy

import (
	"net/http"
	"strings"

	"github.com/cay-run/cay/internal/guest"
)

// What of the agent's and the interpreter's routes starts a program or runs
// code, and what else of the agent's changes files.
var (
	startsProgram = "/process.Process/Start"
	runsCode      = "/execute"
	changesFiles  = []string{
		"/filesystem.Filesystem/MakeDir", "/filesystem.Filesystem/Move", "/filesystem.Filesystem/Remove", "/files",
	}
)

// use tells of a request that may change the sandbox. Meanwhile the sandbox may
// have got another instance.
func (p *Proxy) use(r *http.Request, rt route, target Target, l *lane) (Target, *lane, error) {
	change, command := changes(r, rt.port)
	if !change || !opensAgent(r, target.AccessToken) {
		return target, l, nil
	}
	p.cfg.Used(r.Context(), rt.id, command)
	if !command {
		return target, l, nil
	}
	return p.lane(rt.id)
}

// changes reports whether a request may change a sandbox, and whether it is a
// command. What users' own servers do counts for nothing.
func changes(r *http.Request, port int) (change, command bool) {
	if r.Method != http.MethodPost {
		return false, false
	}
	switch path := r.URL.Path; port {
	case guest.AgentPort:
		if path == startsProgram {
			return true, true
		}
		for _, p := range changesFiles {
			if path == p || p == "/files" && strings.HasPrefix(path, "/files/") {
				return true, false
			}
		}
	case guest.InterpPort:
		return path == runsCode, path == runsCode
	}
	return false, false
}
