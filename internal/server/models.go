package server

import (
	"net/http"
	"slices"

	"github.com/cay-run/cay/internal/conns/outside"
	"github.com/cay-run/cay/internal/edge/models"
	"github.com/cay-run/cay/internal/machine/egress"
)

// modelNetworks say where providers of models may be.
func (s *Server) modelNetworks() outside.Networks {
	return outside.Networks{
		Opened: s.cfg.NetworkOpen, Trusted: s.cfg.ModelOpen, Closed: append(slices.Clone(s.cfg.NetworkClosed), s.cfg.Network),
	}
}

// serveModels answers a guest's request to models. A guest may ask before there is a
// control.
func (s *Server) serveModels(rw http.ResponseWriter, r *http.Request, from egress.Visitor, denied string) {
	select {
	case <-s.ready:
	case <-r.Context().Done():
		return
	}
	s.models.Serve(rw, r, models.Guest{Team: from.Team, Sandbox: from.Sandbox}, denied)
}
