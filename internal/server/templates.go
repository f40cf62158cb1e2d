package server

import (
	"context"
	"iter"
	"slices"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/image"
	"github.com/cay-run/cay/internal/proxy"
	"github.com/cay-run/cay/internal/template"
)

// EnsureTemplates builds the templates that Cay brings, as far as they are
// missing or were made from something else than this build would make them
// from, and offers them. The first time takes minutes, later ones
// milliseconds. It may run beside Run: what is built already serves meanwhile.
// An extra that an operator asked for and that cannot be built is told to the
// log: the others serve without it. progress may be nil.
func (s *Server) EnsureTemplates(ctx context.Context, progress image.Progress) error {
	built := false
	for _, name := range s.templates.Wanted() {
		result, err := s.templates.Build(ctx, name, progress)
		if err != nil && ctx.Err() == nil && slices.Contains(template.Extras(), name) {
			s.log.Warn("template cannot be built again; `cay template add` tries anew", "template", name, "err", err)
			continue
		}
		if err != nil {
			return err
		}
		if err := s.publish(ctx, result); err != nil {
			return err
		}
		built = built || !result.Cached
	}
	if !built {
		return nil
	}
	if _, err := s.Collect(ctx, false); err != nil { // costs disk, nothing else
		s.log.Warn("old templates could not be removed", "err", err)
	}
	return nil
}

// publish offers a built template to every team.
func (s *Server) publish(ctx context.Context, built template.Result) error {
	_, err := s.control.Publish(ctx, control.Publication{
		Team:         s.team.ID,
		Names:        []string{built.Name},
		Public:       true,
		Snapshot:     built.Snapshot.ID,
		Limits:       built.Limits,
		EnvdVersion:  guest.EnvdVersion,
		RecipeDigest: built.RecipeDigest,
		Setup:        built.Setup,
	})
	return err
}

// asleep tells the proxy what a paused sandbox asks of who may wake it.
func (s *Server) asleep(id cay.SandboxID) (proxy.Target, bool) {
	box, ok := s.control.Asleep(id)
	if !ok {
		return proxy.Target{}, false
	}
	access, traffic := s.control.TokensOf(box)
	return proxy.Target{Team: box.Team, Public: box.Network.AllowPublic, TrafficToken: traffic, AccessToken: access}, true
}

func (s *Server) wake(ctx context.Context, id cay.SandboxID) error { return s.control.Wake(ctx, id) }

// used tells of a request that may change a sandbox.
func (s *Server) used(ctx context.Context, id cay.SandboxID, command bool) {
	s.control.Used(ctx, id, command)
}

// lookup tells the proxy where a sandbox is.
func (s *Server) lookup(id cay.SandboxID) (proxy.Target, error) {
	i, ok := s.node.Lookup(id)
	if !ok {
		return proxy.Target{}, cay.Errorf(cay.NotFound, "sandbox %s not found", id)
	}
	return proxy.Target{
		Instance:     i.Spec.Instance,
		Team:         i.Spec.Team,
		Addr:         i.Addr,
		Public:       i.Spec.Network.AllowPublic,
		TrafficToken: i.Spec.TrafficToken,
		AccessToken:  i.Spec.AccessToken,
		MaskHost:     i.Spec.Network.MaskHost,
		HTTPSPorts:   i.Spec.Network.HTTPSPorts,
	}, nil
}

func (s *Server) tokens() iter.Seq2[cay.SandboxID, string] { return s.node.Tokens() }
