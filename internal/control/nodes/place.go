package nodes

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/cay-run/cay"
)

// choices is how many nodes a new sandbox has to choose from. More of them would
// herd to the one that looked best a second ago.
const choices = 3

// averageMB is what a sandbox is taken to need whose node has not told of it yet; and
// one processor.
const averageMB = 512

// Place finds the node for a new sandbox of a template, without those that refused
// it: the best of three, and of those that have one warm. None takes any where ok is
// false.
func (m *Members) Place(template string, refused ...cay.NodeID) (best cay.Node, ok bool) {
	template, _, _ = strings.Cut(strings.ToLower(template), ":")
	m.mu.Lock()
	defer m.mu.Unlock()
	var able, some []cay.Node
	for _, n := range *m.view.Load() {
		if !n.Takes() || slices.Contains(refused, n.ID) {
			continue
		}
		placed := len(m.placed[n.ID])
		n.PromisedCPUs += placed
		n.PromisedMB += placed * averageMB
		if n.Warm[template] > placed && len(some) < choices-1 { // a map has no order
			some = append(some, n)
			continue
		}
		able = append(able, n)
	}
	rand.Shuffle(len(able), func(i, j int) { able[i], able[j] = able[j], able[i] })
	some = append(some, able[:min(len(able), choices)]...)
	if len(some) == 0 {
		return best, false
	}
	best = slices.MinFunc(some, func(a, b cay.Node) int {
		if x, y := score(a, template), score(b, template); x < y {
			return -1
		} else if x > y {
			return 1
		}
		return 0 // the first, which is any
	})
	m.placed[best.ID] = append(m.placed[best.ID], sinceBoot())
	return best, true
}

// Elsewhere reports whether another node that takes sandboxes has a processor with such
// features.
func (m *Members) Elsewhere(ctx context.Context, features []string) bool {
	fits := func(n cay.Node) bool { return n.ID != m.cfg.Self.ID && n.Takes() && n.Goes(features) }
	view := slices.Collect(maps.Values(*m.view.Load()))
	if len(view) == 0 { // this node looks at the others when it must
		var err error
		if view, err = m.cfg.Store.Nodes(ctx); err != nil {
			m.cfg.Log.WarnContext(ctx, "cannot look for a node with another processor", "err", err)
		}
	}
	return slices.ContainsFunc(view, fits)
}

// Like lists the nodes whose processors have no feature that one node's has not, with that one:
// memory that does not go on there goes on at none of them.
func (m *Members) Like(id cay.NodeID) []cay.NodeID {
	view := *m.view.Load()
	out := []cay.NodeID{id}
	for _, n := range view {
		if n.ID != id && view[id].Goes(n.CPUFeatures) {
			out = append(out, n.ID)
		}
	}
	return out
}

// score is smaller for a better place: the part of the memory and of the processors
// that is in use, and the wait where nothing is warm.
func score(n cay.Node, template string) float64 {
	memory := max(part(n.PromisedMB+averageMB, n.MemoryMB), 1-part(n.MemoryFreeMB, n.MemoryMB))
	out := 0.6*memory + 0.4*part(n.PromisedCPUs+1, 4*n.CPUs)
	if n.Warm[template] == 0 {
		out += 0.1
	}
	if memory > 0.85 {
		out += 0.3
	}
	return out
}

func part(n, of int) float64 {
	if of <= 0 {
		return 1
	}
	return float64(n) / float64(of)
}
