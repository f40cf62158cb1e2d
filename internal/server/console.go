package server

import (
	"context"
	"net"
	"net/http"
	"strings"

	"github.com/cay-run/cay/internal/edge/console"
)

// openConsole makes the console, whose calls the API answers, which is made after it.
func (s *Server) openConsole(context.Context) error {
	s.console = console.New(console.Config{
		Page: console.Page(), API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.api.ServeHTTP(w, r) }),
		Agents: s.proxy.Agents(), Domain: s.cfg.ClientDomain(),
		Here: s.isConsole, Ways: s.consoleWays, Ports: s.portsFrom,
	})
	return nil
}

// isConsole reports whether an address is where the console alone listens.
func (s *Server) isConsole(at net.Addr) bool {
	one, ok := at.(*net.TCPAddr)
	two, ours := s.consoleAt.(*net.TCPAddr)
	return ok && ours && one.Port == two.Port
}

// ConsoleURL is the address of the console that links are made for. It is known
// once Ready is closed.
func (s *Server) ConsoleURL() string {
	url := s.cfg.ConsoleURL()
	at := s.listener.Addr()
	if s.consoleAt != nil {
		at = s.consoleAt
	}
	if base, unchosen := strings.CutSuffix(url, ":0"); unchosen { // the kernel chose the port
		_, port, _ := net.SplitHostPort(at.String())
		url = base + ":" + port
	}
	return url
}

// consoleWays are all addresses of the console.
func (s *Server) consoleWays() []string {
	_, port, _ := net.SplitHostPort(s.listener.Addr().String())
	out := []string{s.ConsoleURL()}
	if local := "http://" + net.JoinHostPort(console.LocalName, port); local != out[0] {
		out = append(out, local+" (on the machine itself)")
	}
	return out
}

// portsFrom is how a browser reaches the ports of sandboxes that has the console
// open at a host: below the same name, and from where the console alone listens
// by the path form of the one port.
func (s *Server) portsFrom(r *http.Request, own bool) string {
	scheme := "http://"
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https://"
	}
	if !own {
		return scheme + "{port}-{sandbox}." + strings.TrimPrefix(strings.ToLower(r.Host), "console.") + "/"
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	_, port, _ := net.SplitHostPort(s.listener.Addr().String())
	return scheme + net.JoinHostPort(strings.Trim(host, "[]"), port) + "/s/{sandbox}/{port}/"
}
