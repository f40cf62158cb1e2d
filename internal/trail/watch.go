package trail

import (
	"context"
	"net/http"
	"time"
)

// Watcher is told of what is done. Its methods are called by any number of
// goroutines at once, on the way of requests: they do not wait.
type Watcher interface {
	// Arrived begins a request, and returns the context that it is served with.
	Arrived(ctx context.Context, r *http.Request, of *Request) context.Context
	// Answered ends it.
	Answered(ctx context.Context, r *http.Request, of *Request, a Answer)
	// Begin begins an operation, and returns the context that it is done with and
	// a call for its end.
	Begin(ctx context.Context, what Operation) (context.Context, func(error))
}

// Answer is how a request ended.
type Answer struct {
	Status int           // 0 when it was broken off before there was one
	Whole  bool          // false when it was broken off
	Head   time.Duration // until the answer began
	Took   time.Duration // until it ended
}

// Operation is a kind of work that takes time. The set is closed: a metric has
// a label for each.
type Operation string

// Operations of control, for a sandbox.
const (
	Create     Operation = "create"
	Pause      Operation = "pause"
	Resume     Operation = "resume"
	Fork       Operation = "fork" // all forks of a call
	Checkpoint Operation = "checkpoint"
	Rollback   Operation = "rollback"
	Kill       Operation = "kill"
	Exec       Operation = "exec"  // from when a command is sent in to the beginning of its answer
	Build      Operation = "build" // a template, without its time in the queue
)

// Deliver is one attempt to deliver an event to a webhook.
const Deliver Operation = "webhook.deliver"

// Operations of the node, which those of control are made of.
const (
	NodeClaim   Operation = "node.claim"   // take an instance from the pool
	NodeCreate  Operation = "node.create"  // make one
	NodeTurn    Operation = "node.turn"    // wait for a turn to read or write memory
	NodeRestore Operation = "node.restore" // the engine restores or boots
	NodeSave    Operation = "node.save"    // the engine writes a snapshot, and it is committed
	AgentInit   Operation = "agent.init"   // the agent inside gets its identity
)

// Operations lists them.
var Operations = []Operation{
	Create, Pause, Resume, Fork, Checkpoint, Rollback, Kill, Exec, Build, Deliver,
	NodeClaim, NodeCreate, NodeTurn, NodeRestore, NodeSave, AgentInit,
}

type watcherKey struct{}

// Watch returns a context whose requests and operations are watched.
func Watch(ctx context.Context, w Watcher) context.Context {
	return context.WithValue(ctx, watcherKey{}, w)
}

func watcherOf(ctx context.Context) Watcher {
	w, _ := ctx.Value(watcherKey{}).(Watcher)
	return w
}

// Begin begins an operation for the watcher of the context, if it has one. The call that it
// returns ends it, with its error.
func Begin(ctx context.Context, what Operation) (context.Context, func(error)) {
	if w := watcherOf(ctx); w != nil {
		return w.Begin(ctx, what)
	}
	return ctx, func(error) {}
}
