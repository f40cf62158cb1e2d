package fs

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/textproto"
	"os"
	"strings"
	"syscall"
	"testing"
)

// form makes a multipart body of dispositions and contents, in pairs.
func form(t *testing.T, parts ...string) (body *bytes.Buffer, contentType string) {
	t.Helper()
	body = &bytes.Buffer{}
	w := multipart.NewWriter(body)
	for i := 0; i < len(parts); i += 2 {
		p, err := w.CreatePart(textproto.MIMEHeader{"Content-Disposition": {"form-data; " + parts[i]}})
		must(t, err)
		_, err = io.WriteString(p, parts[i+1])
		must(t, err)
	}
	must(t, w.Close())
	return body, w.FormDataContentType()
}

func gzipped(t *testing.T, text []byte) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(text)
	must(t, err)
	must(t, z.Close())
	return &b
}

const octets = "application/octet-stream"

func TestUploadForm(t *testing.T) {
	w := newWorld(t)
	body, kind := form(t,
		`name="file"; filename="a/b/one.txt"`, "one",
		`name="other"; filename="ignored"`, "x",
		`name="file"; filename="~/two é.txt"`, "",
		fmt.Sprintf(`name="file"; filename="%s"`, w.path("three")), strings.Repeat("3", 700_000),
	)
	a := w.do("POST", "/files", body, "Content-Type", kind)
	want := fmt.Sprintf(`[{"path":"%[1]s/a/b/one.txt","name":"one.txt","type":"file"},`+
		`{"path":"%[1]s/two é.txt","name":"two é.txt","type":"file"},{"path":"%[1]s/three","name":"three","type":"file"}]`, w.home)
	if a.status != 200 || a.body != want {
		t.Fatalf("got %d %s\nwant %s", a.status, a.body, want)
	}
	if w.read("a/b/one.txt") != "one" || w.read("two é.txt") != "" || w.read("three") != strings.Repeat("3", 700_000) {
		t.Error("contents differ")
	}
	for _, p := range []string{"a", "a/b", "a/b/one.txt", "three"} {
		if owner(t, w.path(p)) != uid() {
			t.Errorf("%s does not belong to the user", p)
		}
	}
	st, err := os.Stat(w.path("three"))
	must(t, err)
	if st.Mode() != 0o644 {
		t.Errorf("mode: %v", st.Mode())
	}

	for _, disposition := range []string{`name="file"`, `name="file"; filename="elsewhere"`} {
		body, kind = form(t, disposition, "by query")
		w.do("POST", files("q/f"), body, "Content-Type", kind).check(t, 200, w.path("q/f"))
		if w.read("q/f") != "by query" {
			t.Error("contents differ")
		}
	}
}

func TestUploadOctets(t *testing.T) {
	w := newWorld(t)
	text := bytes.Repeat([]byte("0123456789"), 100_000)
	for name, body := range map[string]io.Reader{
		"sized":   bytes.NewReader(text),
		"chunked": struct{ io.Reader }{bytes.NewReader(text)},
	} {
		w.do("POST", files(name), body, "Content-Type", octets).check(t, 200, name)
		if w.read(name) != string(text) {
			t.Errorf("%s: contents differ", name)
		}
	}
	w.do("POST", files("gz"), gzipped(t, text), "Content-Type", octets, "Content-Encoding", "gzip").check(t, 200, "gz")
	if w.read("gz") != string(text) {
		t.Error("gzip: contents differ")
	}
	body, kind := form(t, `name="file"; filename="gzform"`, "text")
	w.do("POST", "/files", gzipped(t, body.Bytes()), "Content-Type", kind, "Content-Encoding", "gzip").check(t, 200, "gzform")
	// A shorter file replaces a longer one in place, through a link too.
	must(t, os.Symlink("gz", w.path("link")))
	w.do("POST", files("link"), strings.NewReader("short"), "Content-Type", octets).check(t, 200, "link")
	if w.read("gz") != "short" {
		t.Error("the old contents show")
	}
	must(t, os.Symlink("made", w.path("dangling")))
	w.do("POST", files("dangling"), strings.NewReader("new"), "Content-Type", octets).check(t, 200, "dangling")
	if w.read("made") != "new" {
		t.Error("a dangling link was not followed")
	}
}

func TestUploadFails(t *testing.T) {
	w := newWorld(t)
	w.write("f", "old")
	must(t, syscall.Mkfifo(w.path("fifo"), 0o600))
	must(t, os.Mkdir(w.path("d"), 0o755))
	send := func(target, text string, headers ...string) answer {
		return w.do("POST", target, strings.NewReader(text), append([]string{"Content-Type", octets}, headers...)...)
	}
	send(files("f/below"), "x").check(t, 400, "not a directory")
	send(files("d"), "x").check(t, 400, "directory")
	send(files("/"), "x").check(t, 400, "directory")
	send(files("fifo"), "x").check(t, 400, "")
	send(files(strings.Repeat("n", 300)), "x").check(t, 400, "too long")
	send("/files", "x").check(t, 400, "query parameter 'path'")
	send(files("u")+"&username=nobod", "x").check(t, 401, "invalid username: 'nobod'")
	send(files("u"), "x", "Content-Type", "text/plain").check(t, 400, "not supported")
	send(files("u"), "x", "Content-Type", "").check(t, 400, "content type")
	send(files("u"), "x", "Content-Encoding", "br").check(t, 400, "not supported")
	send(files("u"), "no gzip", "Content-Encoding", "gzip").check(t, 400, "gzip")
	half := gzipped(t, bytes.Repeat([]byte("x"), 1000)).String()
	send(files("u"), half[:len(half)-6], "Content-Encoding", "gzip").check(t, 400, "too early")
	send(files("u"), "x", "X-Metadata-K", "é").check(t, 400, "printable")
	send(files("u"), "x", "X-Metadata-K", strings.Repeat("v", 4096)).check(t, 400, "larger")
	send(files("u"), "x", "X-Metadata-"+strings.Repeat("k", 247), "v").check(t, 400, "longer")
	send(files("u"), "x", "Content-Type", "multipart/form-data").check(t, 400, "boundary")
	send(files("u"), "no form", "Content-Type", "multipart/form-data; boundary=b").check(t, 400, "multipart")

	for text, parts := range map[string][]string{
		"twice":       {`name="file"; filename="a"`, "1", `name="file"; filename="./a"`, "2"},
		"no file":     {`name="file"`, "1"},
		"part named":  {`name="data"; filename="a"`, "1"},
		"zero byte":   {"name=\"file\"; filename*=utf-8''a%00", "1"},
		"not support": {},
	} {
		kind := "text/html"
		body := &bytes.Buffer{}
		if len(parts) > 0 {
			body, kind = form(t, parts...)
		}
		w.do("POST", "/files", body, "Content-Type", kind).check(t, 400, text)
	}
	body, kind := form(t, `name="file"; filename="a"`, "1", `name="file"; filename="b"`, "2")
	w.do("POST", files("q"), body, "Content-Type", kind).check(t, 400, "several")
	if _, err := os.Stat(w.path("u")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a failed upload left a file: %v", err)
	}
}

// A client that announces more than it sends gets an error and leaves
// nothing.
func TestUploadShortBody(t *testing.T) {
	w := newWorld(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	must(t, err)
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: 600000\r\n\r\n%s",
		files("short"), octets, strings.Repeat("x", 400_000))
	must(t, err)
	must(t, conn.(*net.TCPConn).CloseWrite())
	status, err := bufio.NewReader(conn).ReadString('\n')
	must(t, err)
	if !strings.Contains(status, " 400 ") {
		t.Errorf("got %q", status)
	}
	if _, err := os.Stat(w.path("short")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a partial file is left: %v", err)
	}
}

func TestUploadFullDisk(t *testing.T) {
	w := newWorld(t)
	disk := smallDisk(t)
	text := strings.Repeat("x", 2<<20)
	for name, body := range map[string]io.Reader{
		"announced": strings.NewReader(text),
		"chunked":   struct{ io.Reader }{strings.NewReader(text)},
	} {
		w.do("POST", files(disk+"/"+name), body, "Content-Type", octets).check(t, 507, "not enough disk space")
	}
	body, kind := form(t, `name="file"; filename="`+disk+`/form"`, text)
	w.do("POST", "/files", body, "Content-Type", kind).check(t, 507, "not enough disk space")
	if items, _ := os.ReadDir(disk); len(items) != 0 {
		t.Errorf("left: %v", items)
	}
}

func TestMetadata(t *testing.T) {
	w := newWorld(t)
	send := func(headers ...string) answer {
		return w.do("POST", files("f"), strings.NewReader("x"), append([]string{"Content-Type", octets}, headers...)...)
	}
	send("X-Metadata-Author", "me", "X-Metadata-a_B.c", "~ 1").check(t, 200, `"metadata":{"a_b.c":"~ 1","author":"me"}`)
	if m := readMetadata(w.path("f")); len(m) != 2 || m["author"] != "me" || m["a_b.c"] != "~ 1" {
		t.Errorf("got %v", m)
	}
	send("X-Metadata-Only", "").check(t, 200, `"metadata":{"only":""}`)
	if m := readMetadata(w.path("f")); len(m) != 1 || m["author"] != "" {
		t.Errorf("got %v", m)
	}
	if a := send(); strings.Contains(a.body, "metadata") {
		t.Errorf("got %s", a.body)
	}
	if m := readMetadata(w.path("f")); m != nil {
		t.Errorf("not cleared: %v", m)
	}
}

func TestCompose(t *testing.T) {
	w := newWorld(t)
	w.write("1", "one ")
	w.write("2", strings.Repeat("2", 300_000))
	w.write("3", "")
	compose := func(body string) answer { return w.do("POST", "/files/compose", strings.NewReader(body)) }
	compose(`{"source_paths":["1","~/2","3","1"],"destination":"new/all","username":"user"}`).
		check(t, 200, fmt.Sprintf(`{"path":"%s","name":"all","type":"file"}`, w.path("new/all")))
	if w.read("new/all") != "one "+strings.Repeat("2", 300_000)+"one " || owner(t, w.path("new/all")) != uid() {
		t.Error("contents or owner differ")
	}
	compose(`{"source_paths":["none"],"destination":"x"}`).check(t, 404, "does not exist")
	compose(`{"source_paths":["1"],"destination":"1"}`).check(t, 400, "destination")
	compose(`{"source_paths":[],"destination":"1"}`).check(t, 400, "sources")
	compose(`{"source_paths":["1"],"destination":"x","username":"nobod"}`).check(t, 401, "nobod")
	compose(`{`).check(t, 400, "JSON")
	compose(`"`+strings.Repeat("x", maxComposeBody)+`"`).check(t, 400, "larger")
}
