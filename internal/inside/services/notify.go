package services

import (
	"errors"
	"net"
	"strconv"
	"strings"
)

// notifier hears what a service says of itself, by sd_notify(3).
type notifier struct {
	address string
	conn    *net.UnixConn
	ready   chan struct{}
	moved   chan struct{}
}

func listenNotify(s *state, r *activation) (*notifier, error) {
	address := "@cay/notify/" + r.id
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	n := &notifier{address: address, conn: conn, ready: make(chan struct{}), moved: make(chan struct{}, 1)}
	go n.hear(s, r)
	return n, nil
}

func (n *notifier) hear(s *state, r *activation) {
	buf := make([]byte, 4096)
	isReady := false
	for {
		size, _, err := n.conn.ReadFromUnix(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(buf[:size])) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			switch key {
			case "READY":
				if !isReady {
					isReady = true
					close(n.ready)
				}
			case "STATUS":
				s.m.mu.Lock()
				s.said = value
				s.m.mu.Unlock()
			case "MAINPID":
				n.move(s, r, value)
			}
		}
	}
}

// move takes another process as the main one.
func (n *notifier) move(s *state, r *activation, value string) {
	pid, err := strconv.Atoi(value)
	if err != nil || pid < 2 || pid == s.mainPID(r) || s.adopt(r, pid) != nil {
		return
	}
	select {
	case n.moved <- struct{}{}:
	default:
	}
	if s.is(active, reloading) {
		s.m.mu.Lock()
		main := r.main
		s.m.mu.Unlock()
		go s.watch(r, main)
	}
}
