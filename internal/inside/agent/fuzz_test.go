package agent_test

import (
	"bytes"
	"encoding/binary"
	"net/http/httptest"
	"testing"

	"github.com/cay-run/cay/internal/inside/agent"
	"github.com/cay-run/cay/internal/inside/agent/reap"
)

// calls are those that a stranger's bytes may be given to: none of them starts
// a process or changes a file.
var calls = []string{
	"/process.Process/List", "/process.Process/Connect", "/process.Process/Update",
	"/process.Process/StreamInput", "/process.Process/SendInput", "/process.Process/SendSignal",
	"/process.Process/CloseStdin", "/filesystem.Filesystem/Stat",
	"/filesystem.Filesystem/GetWatcherEvents", "/filesystem.Filesystem/RemoveWatcher",
}

var kinds = []string{
	"application/json", "application/proto", "application/connect+json", "application/connect+proto",
	"application/grpc", "application/grpc-web+json",
}

// The agent answers every request, and never with the remains of a panic.
func FuzzCalls(f *testing.F) {
	envelope := func(flags byte, size uint32, message string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{flags}, size), message...)
	}
	const pid = `{"process":{"pid":1}}`
	for call := range calls {
		f.Add(uint8(call), uint8(0), []byte(pid))
		f.Add(uint8(call), uint8(1), []byte{10, 2, 8, 1})
		f.Add(uint8(call), uint8(2), envelope(0, uint32(len(pid)), pid))
	}
	for _, body := range [][]byte{
		{}, {0}, []byte("{}"), []byte(`{"path":"/a\u0000b"}`), []byte(`{"process":{"tag":"` + "\xff" + `"}}`),
		envelope(0, 0, ""), envelope(1, 2, "{}"), envelope(2, 2, "{}"), envelope(255, 2, "{}"),
		envelope(0, 1<<32-1, "{}"), envelope(0, 100, "{}"),
		append(envelope(0, uint32(len(`{"start":`+pid+`}`)), `{"start":`+pid+`}`), envelope(0, 13, `{"keepalive":{}}`)...),
	} {
		for kind := range kinds {
			f.Add(uint8(3), uint8(kind), body)
		}
	}
	reaper := reap.New(false)
	f.Cleanup(reaper.Close)
	a := agent.New(agent.Config{Reaper: reaper})
	f.Cleanup(a.Close)
	f.Fuzz(func(t *testing.T, call, kind uint8, body []byte) {
		path := calls[int(call)%len(calls)]
		r := httptest.NewRequest("POST", path, bytes.NewReader(body))
		r.Header.Set("Content-Type", kinds[int(kind)%len(kinds)])
		w := httptest.NewRecorder()
		a.Handler().ServeHTTP(w, r)
		if w.Code == 500 && bytes.Contains(w.Body.Bytes(), []byte("internal error")) {
			t.Errorf("%s panicked", path)
		}
	})
}
