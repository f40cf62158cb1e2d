package fs

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/cay-run/cay/api/proto/filesystem"
	"github.com/cay-run/cay/api/proto/filesystem/filesystemconnect"
)

// seen renders events for comparison: "CREATE name".
func seen(events []*pb.FilesystemEvent) []string {
	var out []string
	for _, e := range events {
		out = append(out, strings.TrimPrefix(e.GetType().String(), "EVENT_TYPE_")+" "+e.GetName())
	}
	return out
}

// An upload of a new small file is three events, in this order, and they are
// there as soon as the upload is answered.
func TestPolledWatcher(t *testing.T) {
	both(t, func(t *testing.T, w *world, c filesystemconnect.FilesystemClient) {
		created, err := c.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: ".", IncludeEntry: true}))
		must(t, err)
		id := created.Msg.GetWatcherId()
		if !strings.HasPrefix(id, "w") {
			t.Errorf("id %q", id)
		}
		for range 20 {
			body, kind := form(t, `name="file"; filename="new.txt"`, "content")
			w.do("POST", "/files", body, "Content-Type", kind).check(t, 200, "new.txt")
			got, err := c.GetWatcherEvents(t.Context(), connect.NewRequest(&pb.GetWatcherEventsRequest{WatcherId: id}))
			must(t, err)
			want := []string{"CREATE new.txt", "CHMOD new.txt", "WRITE new.txt"}
			if s := seen(got.Msg.GetEvents()); !slices.Equal(s, want) {
				t.Fatalf("got %v, want %v", s, want)
			}
			for _, e := range got.Msg.GetEvents() {
				if e.GetEntry().GetPath() != w.path("new.txt") || e.GetEntry().GetName() != "new.txt" {
					t.Errorf("entry: %v", e.GetEntry())
				}
			}
			_, err = c.Remove(t.Context(), connect.NewRequest(&pb.RemoveRequest{Path: "new.txt"}))
			must(t, err)
			got, err = c.GetWatcherEvents(t.Context(), connect.NewRequest(&pb.GetWatcherEventsRequest{WatcherId: id}))
			must(t, err)
			if s := seen(got.Msg.GetEvents()); !slices.Equal(s, []string{"REMOVE new.txt"}) || got.Msg.GetEvents()[0].Entry != nil {
				t.Errorf("got %v", got.Msg)
			}
		}
		_, err = c.RemoveWatcher(t.Context(), connect.NewRequest(&pb.RemoveWatcherRequest{WatcherId: id}))
		must(t, err)
		_, err = c.RemoveWatcher(t.Context(), connect.NewRequest(&pb.RemoveWatcherRequest{WatcherId: id}))
		code(t, err, connect.CodeNotFound)
		_, err = c.GetWatcherEvents(t.Context(), connect.NewRequest(&pb.GetWatcherEventsRequest{WatcherId: id}))
		code(t, err, connect.CodeNotFound)
	})
}

func TestStreamedWatcher(t *testing.T) {
	both(t, func(t *testing.T, w *world, c filesystemconnect.FilesystemClient) {
		stream, err := c.WatchDir(t.Context(), connect.NewRequest(&pb.WatchDirRequest{Path: w.home, Recursive: true}))
		must(t, err)
		defer stream.Close()
		if !stream.Receive() || stream.Msg().GetStart() == nil {
			t.Fatalf("first: %v %v", stream.Msg(), stream.Err())
		}
		w.do("POST", files("sub/f"), strings.NewReader("x"), "Content-Type", octets).check(t, 200, "")
		var got []*pb.FilesystemEvent
		for !slices.Contains(seen(got), "WRITE sub/f") && stream.Receive() {
			if e := stream.Msg().GetFilesystem(); e != nil {
				got = append(got, e)
			}
		}
		must(t, stream.Err())
		if s := seen(got); s[0] != "CREATE sub" || !slices.Contains(s, "CREATE sub/f") || got[0].Entry != nil {
			t.Errorf("got %v", got)
		}
	})
}

func TestWatchersFail(t *testing.T) {
	both(t, func(t *testing.T, w *world, c filesystemconnect.FilesystemClient) {
		w.write("f", "")
		for path, want := range map[string]connect.Code{"f": connect.CodeInvalidArgument, "none": connect.CodeNotFound} {
			_, err := c.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: path}))
			code(t, err, want)
			stream, err := c.WatchDir(t.Context(), connect.NewRequest(&pb.WatchDirRequest{Path: path}))
			must(t, err)
			if stream.Receive() {
				t.Errorf("%s: got %v", path, stream.Msg())
			}
			code(t, stream.Err(), want)
			_ = stream.Close()
		}
		w.svc.mu.Lock()
		w.svc.open += maxWatchers
		w.svc.mu.Unlock()
		_, err := c.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: "."}))
		code(t, err, connect.CodeResourceExhausted)
	})
}

func TestNetworkMounts(t *testing.T) {
	for magic, remote := range map[uint32]bool{
		unix.NFS_SUPER_MAGIC: true, unix.FUSE_SUPER_MAGIC: true, unix.CIFS_SUPER_MAGIC: true,
		unix.V9FS_MAGIC: false, unix.TMPFS_MAGIC: false, unix.EXT4_SUPER_MAGIC: false, unix.OVERLAYFS_SUPER_MAGIC: false,
	} {
		if _, got := remoteFileSystems[magic]; got != remote {
			t.Errorf("%x: %v", magic, got)
		}
	}
}

// frame is one envelope of a Connect stream.
func frame(t *testing.T, r io.Reader) (flags byte, message string) {
	t.Helper()
	var head [5]byte
	_, err := io.ReadFull(r, head[:])
	must(t, err)
	text := make([]byte, binary.BigEndian.Uint32(head[1:]))
	_, err = io.ReadFull(r, text)
	must(t, err)
	var compact bytes.Buffer
	must(t, json.Compact(&compact, text))
	return head[0], compact.String()
}

// enveloped is a message as a client sends it on a stream.
func enveloped(message string) io.Reader {
	head := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	return bytes.NewReader(append(head, message...))
}

// The stream as its bytes are: the start at once, keepalives as the header
// asks, nothing compressed though the client offers it, an error in the last
// frame.
func TestStreamWire(t *testing.T) {
	w := newWorld(t)
	open := func(message string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), "POST", w.url+"/filesystem.Filesystem/WatchDir", enveloped(message))
		must(t, err)
		for k, v := range map[string]string{
			"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1",
			"Keepalive-Ping-Interval": "1", "Connect-Accept-Encoding": "gzip", "Accept-Encoding": "gzip",
		} {
			req.Header.Set(k, v)
		}
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		t.Cleanup(func() { _ = resp.Body.Close() })
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/connect+json" || resp.Header.Get("Content-Encoding") != "" {
			t.Fatalf("got %d %v", resp.StatusCode, resp.Header)
		}
		return resp
	}
	expect := func(r io.Reader, flags byte, message string) {
		if f, m := frame(t, r); f != flags || m != message {
			t.Errorf("got %d %s, want %d %s", f, m, flags, message)
		}
	}
	resp := open(`{"path":"~","includeEntry":false}`)
	expect(resp.Body, 0, `{"start":{}}`)
	expect(resp.Body, 0, `{"keepalive":{}}`)
	must(t, os.Mkdir(w.path("d"), 0o755))
	for { // more keepalives may come first
		if _, m := frame(t, resp.Body); m != `{"keepalive":{}}` {
			if m != `{"filesystem":{"name":"d","type":"EVENT_TYPE_CREATE"}}` {
				t.Errorf("got %s", m)
			}
			break
		}
	}
	resp = open(`{"path":"none"}`)
	expect(resp.Body, 2, `{"error":{"code":"not_found","message":"not found: path '`+w.path("none")+`' does not exist"}}`)
}

// Unary calls as their bytes are.
func TestUnaryWire(t *testing.T) {
	w := newWorld(t)
	file := w.write("f.txt", "hello")
	must(t, os.Chown(file, uid(), gid()))
	must(t, os.Chtimes(file, unixTime, unixTime))
	must(t, unix.Setxattr(file, "user.e2b.k", []byte("v"), 0))
	const json = "application/json"
	for _, c := range []struct {
		rpc, in string
		status  int
		out     string
	}{
		{"Stat", `{"path":"f.txt"}`, 200, `{"entry":{"name":"f.txt","type":"FILE_TYPE_FILE","path":"HOME/f.txt","size":"5","mode":420,` +
			`"permissions":"-rw-r--r--","owner":"user","group":"users","modifiedTime":"2001-09-09T01:46:40Z","metadata":{"k":"v"}}}`},
		{"ListDir", `{"path":"~","depth":1,"unknown":true}`, 200, `{"entries":[{"name":"f.txt","type":"FILE_TYPE_FILE","path":"HOME/f.txt","size":"5",` +
			`"mode":420,"permissions":"-rw-r--r--","owner":"user","group":"users","modifiedTime":"2001-09-09T01:46:40Z","metadata":{"k":"v"}}]}`},
		{"Remove", `{"path":"none"}`, 200, `{}`},
		{"GetWatcherEvents", `{"watcher_id":"w1"}`, 404, `{"code":"not_found","message":"watcher not found: w1"}`},
		{"GetWatcherEvents", `{"watcherId":"w1"}`, 404, `{"code":"not_found","message":"watcher not found: w1"}`},
		{"MakeDir", `{"path":"~"}`, 409, `{"code":"already_exists","message":"directory already exists: HOME"}`},
		{"MakeDir", `{"path":"f.txt"}`, 400, `{"code":"invalid_argument","message":"path 'HOME/f.txt' exists and is not a directory"}`},
		{"Move", `{"source":"x","destination":"y"}`, 404, `{"code":"not_found","message":"not found: path 'HOME/x' does not exist"}`},
		{"Stat", `{"path":1}`, 400, ``},
		{"Stat", `{`, 400, ``},
	} {
		a := w.do("POST", "/filesystem.Filesystem/"+c.rpc, strings.NewReader(c.in), "Content-Type", json)
		var compact bytes.Buffer
		if err := jsonCompact(&compact, a.body); err != nil {
			t.Errorf("%s %s: %v in %q", c.rpc, c.in, err, a.body)
			continue
		}
		out := strings.ReplaceAll(compact.String(), w.home, "HOME")
		if a.status != c.status || c.out != "" && out != c.out {
			t.Errorf("%s %s: got %d %s\nwant %d %s", c.rpc, c.in, a.status, out, c.status, c.out)
		}
	}
}
