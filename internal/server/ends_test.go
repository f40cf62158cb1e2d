package server_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// A request that another node brought is answered by a server that ends meanwhile.
func TestEndsAfterRequestsOfOthers(t *testing.T) {
	t.Parallel() // it waits more than it works
	const port = 9000
	begun, answers := make(chan struct{}, 1), make(chan struct{})
	c := servertest.StartCluster(t, 2, servertest.Steady, func(w *servertest.World) {
		w.Machine.Ports = map[int]func(net.Conn){port: func(conn net.Conn) {
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
				return
			}
			begun <- struct{}{}
			<-answers
			fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}}
	})
	c.AwaitReady(2)
	front, ends := c.Nodes[0], c.Nodes[1]
	id := ""
	for try := 0; id == ""; try++ {
		box, err := front.Client().Create(t.Context(), client.CreateOptions{})
		if err != nil || try == 60 {
			t.Fatal(err, "no sandbox is made on the node that ends")
		}
		if slices.Equal(whereOf(c, box.ID), []int{1}) {
			id = box.ID
		}
	}
	answered, ended := make(chan string, 1), make(chan struct{})
	go func() {
		code, text := intoSandbox(t, front, id, "GET", "/", nil, "E2b-Sandbox-Port", fmt.Sprint(port))
		answered <- fmt.Sprint(code, " ", text)
	}()
	<-begun
	at := ends.Addr().String()
	go func() { ends.Stop(); close(ended) }()
	for { // until it takes no connections of clients any more
		conn, err := net.DialTimeout("tcp", at, time.Second)
		if err != nil {
			break
		}
		conn.Close()
	}
	select {
	case got := <-answered:
		t.Errorf("while the guest works, its client is answered %s", got)
	case <-time.After(100 * time.Millisecond): // a server that waits for nothing has ended by then
		close(answers)
		if got := <-answered; got != "200 ok" {
			t.Errorf("it is answered %s", got)
		}
	}
	<-ended
}
