package builtin

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/cay-run/cay/internal/template/image"
)

// Backlog is what is left to build while the server serves: which templates,
// how far the one under work is, and why the last try ended, if it failed.
type Backlog struct {
	mu      sync.Mutex
	names   []string
	step    string
	percent int
	failed  error
	changed chan struct{} // closed with the next change
}

// NewBacklog returns an empty one.
func NewBacklog() *Backlog { return &Backlog{changed: make(chan struct{})} }

// change does something to the backlog and wakes those that wait for it.
func (b *Backlog) change(do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	do()
	close(b.changed)
	b.changed = make(chan struct{})
}

// Begin says which templates are to be built, in this order.
func (b *Backlog) Begin(names []string) {
	b.change(func() { b.names, b.step, b.percent, b.failed = slices.Clone(names), "waiting", -1, nil })
}

// Progress says how far the first of them is. It is an image.Progress.
func (b *Backlog) Progress(step string, percent int) {
	b.change(func() { b.step, b.percent = step, percent })
}

// Done says that a template needs no work any more.
func (b *Backlog) Done(name string) {
	b.change(func() { b.names = slices.DeleteFunc(b.names, func(n string) bool { return n == name }) })
}

// Fail says why the work rests. The templates stay: it is tried again.
func (b *Backlog) Fail(err error) { b.change(func() { b.failed = err }) }

// Names lists what is not built yet.
func (b *Backlog) Names() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.names)
}

// Of tells how far a template is, if it is not built yet.
func (b *Backlog) Of(name string) (told string, building bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := slices.Index(b.names, name)
	switch {
	case at < 0:
		return "", false
	case b.failed != nil:
		return "the last try failed: " + b.failed.Error(), true
	case at > 0:
		return fmt.Sprintf("it waits for %s", b.names[0]), true
	case b.percent < 0:
		return b.step, true
	}
	return fmt.Sprintf("%s (%d%%)", b.step, b.percent), true
}

// Wait returns when all of the names are built, no names meaning all, or with
// the error of a try that failed. It tells every step.
func (b *Backlog) Wait(ctx context.Context, names []string, progress image.Progress) error {
	for {
		b.mu.Lock()
		left := slices.ContainsFunc(b.names, func(n string) bool { return len(names) == 0 || slices.Contains(names, n) })
		step, percent, failed, changed := b.step, b.percent, b.failed, b.changed
		b.mu.Unlock()
		switch {
		case !left:
			return nil
		case failed != nil:
			return failed
		}
		progress(step, percent)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
