// Package doors says which ports of a sandbox start programs or code that a client
// sends. Every way in uses it, so that no way passes the sandbox's AskCommands.
package doors

import (
	"strconv"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// Is reports whether Cay's own server behind a port starts what a client sends. The
// proxy reads requests to such a port, and never joins a connection to it.
func Is(port int) bool { return port == guest.AgentPort || port == guest.InterpPort }

// Closed returns why no plain connection may lead to a port: the agent's requests pass
// the proxy, which reads them.
func Closed(port int) error {
	switch {
	case port < 1 || port > 65535:
		return cay.Errorf(cay.Invalid, "port: must be 1 to 65535")
	case port == guest.AgentPort:
		return cay.Errorf(cay.Denied, "port: %d is the agent's", port)
	}
	return nil
}

// Forward is the start that a plain connection to a port stands for, as a user inside:
// its bytes are not read. Other ports are servers of users, whose connections start
// nothing of Cay's.
func Forward(port int, user string) (s cay.Start, starts bool) {
	if !Is(port) {
		return cay.Start{}, false
	}
	return cay.Start{Command: []string{"forward", strconv.Itoa(port)}, Unseen: true, User: user}, true
}
