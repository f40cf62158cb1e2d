package trail

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"time"
)

// reply notes how a request is answered.
type reply struct {
	http.ResponseWriter
	came, began time.Time
	status      int
	whole       bool // the handler came to its end
}

// Unwrap is for http.ResponseController.
func (r *reply) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (r *reply) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		r.begin(status)
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *reply) Write(p []byte) (int, error) {
	r.begin(http.StatusOK)
	return r.ResponseWriter.Write(p)
}

// ReadFrom leaves it to the server how it sends a file.
func (r *reply) ReadFrom(src io.Reader) (int64, error) {
	r.begin(http.StatusOK)
	return io.Copy(r.ResponseWriter, src)
}

// FlushError implements what http.ResponseController looks for.
func (r *reply) FlushError() error {
	r.begin(http.StatusOK)
	return http.NewResponseController(r.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker: the connection becomes something else.
func (r *reply) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err == nil {
		r.begin(http.StatusSwitchingProtocols)
	}
	return conn, buffered, err
}

func (r *reply) begin(status int) {
	if r.status == 0 {
		r.status, r.began = status, time.Now()
	}
}

func (r *reply) answer() Answer {
	if r.whole {
		r.begin(http.StatusOK) // an empty answer
	}
	a := Answer{Status: r.status, Whole: r.whole, Took: time.Since(r.came)}
	a.Head = a.Took
	if r.status != 0 {
		a.Head = r.began.Sub(r.came)
	}
	return a
}
