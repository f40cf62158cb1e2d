package agent_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"connectrpc.com/connect"
)

// The output of a busy process reaches every follower, whole and in order, also when one of them leaves in the middle. Under the events their
// memory is used again, which must not show.
func TestFloodReachesEveryFollower(t *testing.T) {
	const last = 300_000
	var want bytes.Buffer
	for i := range last {
		fmt.Fprintln(&want, i+1)
	}
	w := newWorld(t)
	c := w.client(connect.WithProtoJSON())
	first := w.start(c, sh(fmt.Sprintf("read go; exec seq %d", last)))
	followers := []*running{first}
	for range 3 {
		r, err := w.connect(c, byPid(first.pid))
		must(t, err)
		followers = append(followers, r)
	}
	must(t, w.send(c, first.pid, stdin("go\n")))

	var wg sync.WaitGroup
	for i, r := range followers {
		wg.Go(func() {
			leaves := i == 3
			for r.next() {
				if leaves && r.stdout.Len() > 500_000 {
					_ = r.stream.Close() // what is not read yet may make it fail
					return
				}
			}
			if err := r.stream.Err(); err != nil {
				t.Errorf("follower %d: %v", i, err)
			}
			if r.end.GetExitCode() != 0 || !bytes.Equal(r.stdout.Bytes(), want.Bytes()) {
				t.Errorf("follower %d: %d bytes of %d, end %v", i, r.stdout.Len(), want.Len(), r.end)
			}
		})
	}
	wg.Wait()
}
