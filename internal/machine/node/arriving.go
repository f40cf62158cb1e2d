package node

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
)

// stream has the engine read snapshots that arrive, if it can.
func (n *Node) stream() error {
	s, ok := n.cfg.Engine.(engine.Streamer)
	if !ok || n.cfg.Arrive == nil {
		n.cfg.Arrive = nil
		return nil
	}
	stop, err := s.Stream(n.cfg.Arrive)
	if err == nil {
		n.endStream = stop
	}
	return err
}

// arriving is find for a snapshot that is elsewhere. An instance that boots needs it
// whole: then arrives is not set.
func (n *Node) arriving(ctx context.Context, spec *cay.InstanceSpec) (source, error) {
	a, err := n.cfg.Arrive(ctx, spec.Snapshot)
	if err != nil {
		return source{}, err
	}
	if _, _, err := n.cfg.Snapshots.Get(spec.Snapshot); cay.KindOf(err) != cay.NotFound {
		return source{}, nil // it is here; its image was lacking
	}
	record := a.Snapshot()
	if record.Kind != cay.MemorySnapshot || n.cfg.Engine.CanRestore(record) != nil {
		return source{}, nil
	}
	root, err := n.cfg.Snapshots.Image(record.Root)
	if err != nil {
		return source{}, err
	}
	if spec.Limits == (cay.Limits{}) {
		spec.Limits = record.Limits
	}
	return source{record: record, root: root, arrives: true}, nil
}
