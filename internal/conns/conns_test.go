package conns

import (
	"net"
	"slices"
	"syscall"
	"testing"
)

// script is a listener whose answers are known.
type script struct {
	net.Listener
	answers []error
}

func (s *script) Accept() (net.Conn, error) {
	err := s.answers[0]
	s.answers = s.answers[1:]
	if err != nil {
		return nil, err
	}
	c, _ := net.Pipe()
	return c, nil
}

func TestEachGoesOnUntilItIsClosed(t *testing.T) {
	closed := &net.OpError{Op: "accept", Err: net.ErrClosed}
	l := &script{answers: []error{nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}, nil, closed}}
	if got := slices.Collect(Each(l)); len(got) != 2 || len(l.answers) != 0 {
		t.Errorf("%d connections, %d answers were not asked for", len(got), len(l.answers))
	}
	l = &script{answers: []error{nil, nil, closed}}
	for range Each(l) {
		break
	}
	if len(l.answers) != 2 {
		t.Errorf("%d answers are left, want 2: who has enough takes no more", len(l.answers))
	}
}
