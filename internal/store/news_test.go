package store

import (
	"net"
	"testing"
	"time"
)

// A look for what a connection has to say waits for no reader: pgx leaves one at an idle
// connection after a write that took its time.
func TestNewsBesideAReader(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := near.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	reads, over := make(chan struct{}), make(chan struct{})
	defer close(over)
	go func() { _ = raw.Read(func(uintptr) bool { close(reads); <-over; return true }) }()
	<-reads
	told := make(chan bool, 1)
	look := func() bool {
		go func() { told <- hasNews(near) }()
		select {
		case news := <-told:
			return news
		case <-time.After(10 * time.Second):
			t.Fatal("it waits for the reader")
			return true
		}
	}
	if look() {
		t.Error("there is news of a connection that is silent")
	}
	far.Close()
	for begun := time.Now(); !look(); {
		if time.Since(begun) > 10*time.Second {
			t.Fatal("there is no news of one that has ended")
		}
	}
}
