package server

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/edge/proxy"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/template/builtin"
	"github.com/cay-run/cay/internal/ticks"
)

// StandIn has Run begin, where no template of the code interpreter is there, with the
// one with Python alone: it stands for the one that the SDKs ask for until that is
// built. It is called before Run.
func (s *Server) StandIn() { s.standIn = true }

// lacksInterpreter reports whether another template is to stand for that of the code
// interpreter.
func (s *Server) lacksInterpreter(ctx context.Context) bool {
	_, err := s.control.Template(ctx, cay.ForTeam(s.team.ID), builtin.CodeInterpreter)
	return s.standIn && err != nil && ctx.Err() == nil
}

// Building lists the templates that are not built yet, or from something else
// than this build would make them from.
func (s *Server) Building() []string { return s.backlog.Names() }

// missingTemplates are those that are to be built, in that order.
func (s *Server) missingTemplates(ctx context.Context) []string {
	if !s.cfg.RunsSandboxes() {
		return nil
	}
	missing := slices.DeleteFunc(s.templates.Wanted(), func(name string) bool {
		_, err := s.templates.Current(name)
		return err == nil
	})
	if at := slices.Index(missing, builtin.CodeInterpreterPython); at > 0 && s.lacksInterpreter(ctx) {
		missing = slices.Insert(slices.Delete(missing, at, at+1), 0, builtin.CodeInterpreterPython)
	}
	return missing
}

// How long a failed build rests; its needs may come back, as a network does.
const (
	buildAgain  = time.Minute
	buildSeldom = time.Hour
)

// buildTemplates builds what is missing while the server serves, and does not
// give up.
func (s *Server) buildTemplates(ctx context.Context) {
	for wait := buildAgain; ; wait = min(2*wait, buildSeldom) {
		err := s.buildMissing(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		s.backlog.Fail(err)
		s.log.WarnContext(ctx, "the templates that Cay brings cannot be built now; it is tried again", "in", wait, "err", err)
		if !ticks.Wait(ctx, wait) {
			return
		}
		s.backlog.Begin(s.missingTemplates(ctx))
	}
}

// buildMissing builds what the backlog has. An extra that an operator asked for
// and that cannot be built is told to the log: the others serve without it.
func (s *Server) buildMissing(ctx context.Context) error {
	missing := s.backlog.Names()
	for _, name := range missing {
		built, err := s.templates.Build(ctx, name, s.backlog.Progress)
		switch {
		case err == nil:
			err = s.publish(ctx, built)
			if err == nil && name == builtin.CodeInterpreterPython && s.lacksInterpreter(ctx) {
				built.Name = builtin.CodeInterpreter
				err = s.publish(ctx, built)
			}
		case ctx.Err() == nil && slices.Contains(builtin.Extras(), name):
			s.log.WarnContext(ctx, "template cannot be built again; `cay template add` tries anew", "template", name, "err", err)
			err = nil
		}
		if err != nil {
			return err
		}
		s.backlog.Done(name)
	}
	if len(missing) == 0 {
		return nil
	}
	if _, err := s.desk.Collect(ctx, false); err != nil { // costs disk, nothing else
		s.log.WarnContext(ctx, "old templates could not be removed", "err", err)
	}
	return nil
}

// publish offers a built template to every team.
func (s *Server) publish(ctx context.Context, built builtin.Result) error {
	s.keepOwn(built)
	s.desk.Offer(built.Name, built.Snapshot.ID)
	s.cluster.publishing.Lock() // a server that begins to lead offers all, beside a build that ends
	defer s.cluster.publishing.Unlock()
	if !s.leads() {
		return nil // the records have those of the node that leads
	}
	_, err := s.control.Publish(ctx, fleet.Publication{
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

// asleep tells the proxy the tokens that wake a paused sandbox.
func (s *Server) asleep(id cay.SandboxID) (proxy.Target, bool) {
	box, ok := s.control.Asleep(id)
	if !ok {
		return proxy.Target{}, false
	}
	access, traffic := s.control.TokensOf(box)
	return proxy.Target{Team: box.Team, Public: box.Network.AllowPublic, TrafficToken: traffic, AccessToken: access}, true
}

// fate says what became of a sandbox of this machine.
func (s *Server) fate(id cay.SandboxID) proxy.Fate {
	state, cause := s.control.Fate(id)
	return proxy.Fate{State: state, Cause: cause}
}

func (s *Server) wake(ctx context.Context, id cay.SandboxID) error { return s.control.Wake(ctx, id) }

// used tells of a request that may change a sandbox.
func (s *Server) used(ctx context.Context, id cay.SandboxID, command bool) {
	s.control.Used(ctx, id, command)
}

// lookup tells the proxy where a sandbox is. One whose end is recorded gets no request,
// though its instance may answer for a moment.
func (s *Server) lookup(id cay.SandboxID) (proxy.Target, error) {
	i, ok := s.node.Lookup(id)
	if !ok || !s.control.Lives(id) {
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
		AskCommands:  i.Spec.AskCommands,
	}, nil
}

// tokens yields the access tokens of the sandboxes that run and of those that
// traffic may wake: first those of this machine.
func (s *Server) tokens(ctx context.Context) iter.Seq2[cay.SandboxID, string] {
	return func(yield func(cay.SandboxID, string) bool) {
		for id, token := range s.node.Tokens() {
			if !yield(id, token) {
				return
			}
		}
		for _, box := range s.control.Sleepers() {
			if access, _ := s.control.TokensOf(box); !yield(box.ID, access) {
				return
			}
		}
		if !s.member() {
			return
		}
		others, err := s.records.SignedElsewhere(ctx, s.lease.Node)
		if err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "cannot look for the sandbox of a signed link on other nodes", "err", err)
		}
		for _, id := range others {
			if !yield(id, s.tokensOf.Access(id)) {
				return
			}
		}
	}
}
