package proc

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
)

// crowded is a service whose sandbox has room for some processes that calls start.
func crowded(most int) *Service {
	return New(Config{Room: func(live, _ int) string {
		if live >= most {
			return "no room"
		}
		return ""
	}})
}

// begin starts a process of its own that never ends by itself.
func begin(t *testing.T, s *Service, pid uint32) *process {
	t.Helper()
	begun, err := s.admit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := &process{pid: pid}
	s.table.add(p)
	begun()
	return p
}

// Of a thousand starts at once as many begin as there is room for; the others begin as
// room comes, in their order, and are refused with the reason when none does.
func TestStartsWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const all, most, ends = 1000, 100, 50
		s := crowded(most)
		started, refused := make(chan *process, all), make(chan error, all)
		for i := range all {
			go func() {
				begun, err := s.admit(t.Context())
				if err != nil {
					refused <- err
					return
				}
				p := &process{pid: uint32(i + 1)}
				s.table.add(p)
				begun()
				started <- p
			}()
		}
		synctest.Wait()
		if len(started) != most || len(refused) != 0 {
			t.Fatalf("%d started and %d were refused, with room for %d", len(started), len(refused), most)
		}
		for range ends {
			s.table.bury(<-started)
			synctest.Wait()
		}
		if len(started) != most {
			t.Fatalf("%d live after others ended, with room for %d", len(started), most)
		}
		time.Sleep(turnWait)
		synctest.Wait()
		if len(started) != most || len(refused) != all-most-ends {
			t.Fatalf("%d live and %d were refused in the end", len(started), len(refused))
		}
		for len(refused) > 0 {
			if err := <-refused; connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "was not started") || !strings.Contains(err.Error(), "no room") {
				t.Fatal(err)
			}
		}
		time.Sleep(linger)
	})
}

// A caller that leaves takes its place in the line with it.
func TestAStartLeavesTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := crowded(1)
		p := begin(t, s, 1)
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := s.admit(ctx)
			left <- err
		}()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		s.table.bury(p)
		begin(t, s, 2)
		time.Sleep(linger)
	})
}

// A process is young for a minute, and from its admission on.
func TestYoungStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := crowded(10)
		begin(t, s, 1)
		time.Sleep(startYoung)
		begun := s.table.expect()
		begin(t, s, 2)
		if live, young := s.table.starts(); live != 3 || young != 2 {
			t.Errorf("%d live, %d young", live, young)
		}
		begun()
		if live, young := s.table.starts(); live != 2 || young != 1 {
			t.Errorf("%d live, %d young", live, young)
		}
	})
}
