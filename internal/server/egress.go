package server

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/egress"
	"github.com/cay-run/cay/internal/vnet"
)

// openEgress serves what the packet filter diverts.
func (s *Server) openEgress(m *machine) {
	s.egress = egress.New(egress.Config{
		Dial:      m.net.Dial,
		Original:  vnet.Original,
		Closed:    m.net.Closed,
		Resolvers: m.net.Resolvers(),
		Secret:    s.secret,
		Log:       s.log,
	})
	s.later(func() error { s.egress.Close(); return nil })
	d := m.net.Diverted()
	go s.egress.Serve(d.Conns) // until m.net is closed
	go s.egress.ServeUDP(d.Questions)
	go s.egress.ServeTCP(d.QuestionConns)
}

// secret returns a secret of a team, for headers.
func (s *Server) secret(context.Context, cay.TeamID, string) (string, error) {
	return "", cay.Errorf(cay.NotFound, "there are no secrets")
}
