package egress

import (
	"bytes"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A refusal over HTTP/2 ends its stream and does not reset it, though the request's
// body comes after its head: clients lose an answer whose stream is reset.
func TestRefusalsDoNotReset(t *testing.T) {
	begun := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		takeBody(w, r)
		w.WriteHeader(http.StatusForbidden)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	conn, err := tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = conn.Write([]byte(http2.ClientPreface))
	must(err)
	frames := http2.NewFramer(conn, conn)
	must(frames.WriteSettings())
	var head bytes.Buffer
	encoder := hpack.NewEncoder(&head)
	for _, field := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":authority", "x"}, {":path", "/"}, {"content-length", "7"}} {
		must(encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}))
	}
	must(frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true}))
	<-begun
	must(frames.WriteData(1, true, []byte("payload")))
	for ended := false; ; {
		frame, err := frames.ReadFrame()
		must(err)
		switch f := frame.(type) {
		case *http2.RSTStreamFrame:
			t.Fatalf("the stream was reset: %v", f.ErrCode)
		case *http2.HeadersFrame:
			ended = ended || f.StreamEnded()
		case *http2.DataFrame:
			ended = ended || f.StreamEnded()
		case *http2.PingFrame:
			if f.IsAck() {
				return // nothing came after the answer
			}
		}
		if ended {
			must(frames.WritePing(false, [8]byte{1}))
			ended = false
		}
	}
}
