package front

import "sync/atomic"

// Counts are how many requests of clients a front has brought where.
type Counts struct {
	Here    int64 // served by this node
	Node    int64 // answered by another one
	Several int64 // answered by all nodes, or by those of a batch
	None    int64 // that reached no node
	Moved   int64 // that went to a node first which did not have the sandbox any more
	Refused int64 // creates that a node refused, so that another one was asked
}

// counts are Counts that are being counted.
type counts struct {
	here, node, several, none, moved, refused atomic.Int64
}

// Counts tells what this front has done since it began.
func (f *Front) Counts() Counts {
	c := &f.counts
	return Counts{c.here.Load(), c.node.Load(), c.several.Load(), c.none.Load(), c.moved.Load(), c.refused.Load()}
}
