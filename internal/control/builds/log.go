package builds

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
)

const (
	logEvery = 200 * time.Millisecond
	logLines = 20_000 // that are kept of one build
)

// buildLog writes the lines of one build, a few at a time.
type buildLog struct {
	queue *Queue
	build cay.Build

	mu      sync.Mutex
	pending []cay.BuildLog
	written int // that are in the store
	last    time.Time
	full    bool

	done    chan struct{}
	stop    func() // closes done
	running sync.WaitGroup
}

func (q *Queue) newBuildLog(b cay.Build) *buildLog {
	done := make(chan struct{})
	l := &buildLog{queue: q, build: b, done: done, stop: sync.OnceFunc(func() { close(done) })}
	l.running.Go(l.write)
	return l
}

// add takes a line, which never waits for the store. Times never run
// backwards, whatever the clock does.
func (l *buildLog) add(line cay.BuildLog) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if line.At = ledger.Now(); line.At.Before(l.last) {
		line.At = l.last
	}
	l.last = line.At
	line.Message = strings.ToValidUTF8(line.Message[:min(len(line.Message), messageMost)], "\uFFFD")
	switch n := l.written + len(l.pending); {
	case n < logLines || line.Level >= cay.LogError && n < 2*logLines:
	case l.full:
		return
	default:
		l.full = true
		line.Level, line.Message = cay.LogWarn, "the log is full: later lines are not kept"
	}
	l.pending = append(l.pending, line)
}

func (l *buildLog) write() {
	tick := time.NewTicker(logEvery)
	defer tick.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-tick.C:
			l.flush(context.Background())
		}
	}
}

// close writes what is left. It may be called again when more was added.
func (l *buildLog) close(ctx context.Context) {
	l.stop()
	l.running.Wait()
	l.flush(ctx)
}

func (l *buildLog) flush(ctx context.Context) {
	l.mu.Lock()
	lines, from := l.pending, l.written
	l.pending = nil
	l.written += len(lines)
	l.mu.Unlock()
	if len(lines) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, ledger.EndWithin)
	defer cancel()
	if err := l.queue.store.AddBuildLogs(ctx, l.build.Team, l.build.ID, from, lines); err != nil {
		l.queue.log.WarnContext(ctx, "cannot keep the log of a build", "build", l.build.ID, "err", err)
	}
}
