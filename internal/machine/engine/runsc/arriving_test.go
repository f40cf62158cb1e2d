package runsc

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
)

// TestStrangersGetNoFile: only a process of an instance's own cgroup is given
// files, of the snapshot that the instance was restored from.
func TestStrangersGetNoFile(t *testing.T) {
	e := &Engine{cfg: Config{Run: t.TempDir()}, cg: findHierarchy("cay-no-such-cgroup")}
	asked := false
	stop, err := e.Stream(func(context.Context, cay.SnapshotID) (engine.Arrival, error) {
		asked = true
		return nil, cay.Errorf(cay.NotFound, "none")
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	arriving, plain := cay.NewInstanceID(), cay.NewInstanceID()
	for id, s := range map[cay.InstanceID]cay.SnapshotID{arriving: cay.NewSnapshotID(), plain: ""} {
		if err := e.save(&record{ID: id, Arriving: s}); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"of an instance that it is not of": `{"instance":"` + string(arriving) + `","file":"pages.img"}`,
		"of one that was restored of here": `{"instance":"` + string(plain) + `","file":"pages.img"}`,
		"of one that is not there":         `{"instance":"` + string(cay.NewInstanceID()) + `","file":"pages.img"}`,
		"of a path":                        `{"instance":"../` + string(arriving) + `","file":"pages.img"}`,
		"nothing":                          "",
		"something else":                   "GET / HTTP/1.1\r\n\r\n",
		"a file outside, of another's":     `{"instance":"` + string(arriving) + `","file":"../../record.json"}`,
		"more than a message has":          strings.Repeat("x", 64<<10),
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("unixpacket", e.socket())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			conn := c.(*net.UnixConn)
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			if _, err := conn.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
			if text == "" {
				_ = conn.CloseWrite()
			}
			buf, rights := make([]byte, 4<<10), make([]byte, 256)
			n, m, _, _, err := conn.ReadMsgUnix(buf, rights)
			if err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			var said reply
			if m != 0 || n > 0 && (json.Unmarshal(buf[:n], &said) != nil || said.Error == "") {
				t.Errorf("it was given %d bytes of rights and told %q", m, buf[:n])
			}
		})
	}
	if asked {
		t.Error("a snapshot was asked for")
	}
	stop()
	if _, err := net.Dial("unixpacket", e.socket()); err == nil {
		t.Error("it answers after its end")
	}
	if _, err := os.Stat(e.socketDir()); err != nil {
		t.Error(err)
	}
}
