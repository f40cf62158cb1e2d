package server_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

func tarred(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		text := ""
		if h.Typeflag == tar.TypeReg {
			text, h.Linkname = h.Linkname, ""
		}
		h.Size, h.Mode = int64(len(text)), 0o644
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func plain(name, text string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: text}
}

// textOf reads a file of a volume.
func textOf(t *testing.T, api *client.Client, ref, path string) string {
	t.Helper()
	files, err := api.VolumeFiles(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	in, err := files.ReadFile(t.Context(), path)
	if err != nil {
		return string(cay.KindOf(err))
	}
	defer in.Close()
	text, err := io.ReadAll(in)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// needsRoot skips a test of a volume that is filled or mounted.
func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("owners and mounts of volumes need root")
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestVolumesFilledAndExported(t *testing.T) {
	needsRoot(t)
	w := servertest.Start(t)
	api, ctx := w.Client(), t.Context()
	_, err := api.CreateVolume(ctx, client.NewVolume{Name: "data", SizeMB: 64})
	noError(t, err)
	source, back := t.TempDir(), filepath.Join(t.TempDir(), "back")
	noError(t, os.MkdirAll(filepath.Join(source, "d/empty"), 0o755))
	big := strings.Repeat("0123456789abcdef", 1<<17) // beyond the bound of other bodies
	noError(t, os.WriteFile(filepath.Join(source, "d/big"), []byte(big), 0o600))
	noError(t, os.Symlink("big", filepath.Join(source, "d/link")))
	in := client.PackDir(source)
	defer in.Close()
	var moved int64
	done, err := api.FillVolume(ctx, "data", "/a/b", in, client.FillOptions{Progress: func(n int64) { moved = n }})
	noError(t, err)
	if done.Entries != 4 || done.Bytes != int64(len(big)) || moved <= done.Bytes {
		t.Errorf("filled %+v, moved %d", done, moved)
	}
	if got := textOf(t, api, "data", "/a/b/d/big"); got != big {
		t.Errorf("the file has %d bytes", len(got))
	}
	out, err := api.ExportVolume(ctx, "data", "/a/b")
	noError(t, err)
	defer out.Close()
	_, err = client.UnpackDir(out, back)
	noError(t, err)
	if text, err := os.ReadFile(filepath.Join(back, "d/link")); err != nil || string(text) != big {
		t.Errorf("back came %d bytes, %v", len(text), err)
	}
	one, err := api.ExportVolume(ctx, "data", "/a/b/d/big")
	noError(t, err)
	defer one.Close()
	if h, err := tar.NewReader(one).Next(); err != nil || h.Name != "big" {
		t.Errorf("one file: %+v, %v", h, err)
	}
	if _, err := api.ExportVolume(ctx, "data", "/none"); cay.KindOf(err) != cay.NotFound {
		t.Errorf("what is not there: %v", err)
	}
}

// Archives that one team sends without end take its own turns, and each comes
// back.
func TestEndlessArchivesForVolumes(t *testing.T) {
	needsRoot(t)
	w := servertest.Start(t)
	api := w.Client()
	v, err := api.CreateVolume(t.Context(), client.NewVolume{Name: "data", SizeMB: 64})
	noError(t, err)
	const most = 16
	ended := make(chan error, most)
	var bodies []*io.PipeWriter
	for n := range most {
		r, body := io.Pipe()
		bodies = append(bodies, body)
		t.Cleanup(func() { body.Close() })
		go func() {
			_, err := api.FillVolume(t.Context(), "data", fmt.Sprint("/", n), r, client.FillOptions{})
			ended <- err
		}()
		text, err := io.ReadAll(tarred(t, plain("f", "text"), plain("g", "text")))
		noError(t, err)
		_, err = body.Write(text[:1536]) // all of f, and the header of g
		noError(t, err)
	}
	files := filepath.Join(w.Config.Data, "volumes", v.ID, "root")
	for n, until := 0, time.Now().Add(time.Minute); n < most; {
		if _, err := os.Stat(filepath.Join(files, fmt.Sprint(n), "f")); err == nil {
			n++
		} else if time.Now().After(until) {
			t.Fatalf("archive %d does not come: %v", n, err)
		} else {
			time.Sleep(5 * time.Millisecond)
		}
	}
	for _, method := range []string{"PUT", "GET"} {
		if status, text := call(t, w, w.Key, method, "/cay/v1/volumes/data/tree?path=/", ""); status != 429 {
			t.Errorf("%s beyond them: %d %s", method, status, text)
		}
	}
	for _, body := range bodies {
		body.CloseWithError(io.ErrUnexpectedEOF)
	}
	for range bodies {
		if err := <-ended; err == nil {
			t.Error("a part of an archive is taken for the whole")
		}
	}
	for until := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) { // the server sees the end a moment later
		status, text := call(t, w, w.Key, "GET", "/cay/v1/volumes/data/tree?path=/", "")
		if status == 200 {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("afterwards: %d %s", status, text)
		}
	}
}

func TestHostileArchivesForVolumes(t *testing.T) {
	needsRoot(t)
	w := servertest.Start(t)
	api, ctx := w.Client(), t.Context()
	_, err := api.CreateVolume(ctx, client.NewVolume{Name: "data", SizeMB: 64})
	noError(t, err)
	for name, c := range map[string]struct {
		path string
		tar  io.Reader
	}{
		"up":            {"/", tarred(t, plain("../x", "x"))},
		"absolute":      {"/", tarred(t, plain("/etc/x", "x"))},
		"through links": {"/", tarred(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/"}, plain("l/x", "x"))},
		"device":        {"/", tarred(t, tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3})},
		"fifo":          {"/", tarred(t, tar.Header{Typeflag: tar.TypeFifo, Name: "f"})},
		"no tar":        {"/", strings.NewReader(strings.Repeat("no tar at all ", 100))},
		"cut":           {"/", bytes.NewReader(tarred(t, plain("f", strings.Repeat("x", 4000))).Bytes()[:2000])},
		"deep":          {"/", tarred(t, plain(strings.Repeat("d/", 1500)+"f", "x"))},
		"a deep link":   {"/", tarred(t, tar.Header{Typeflag: tar.TypeLink, Name: "f", Linkname: strings.Repeat("d/", 1500) + "f"})},
		"a long name":   {"/", tarred(t, plain(strings.Repeat(strings.Repeat("n", 200)+"/", 30)+"f", "x"))},
		"a deep path":   {"/" + strings.Repeat("d/", 1500), tarred(t, plain("x", "x"))},
		"a path up":     {"/../x", tarred(t, plain("x", "x"))},
		"no UTF-8":      {"/\xff", tarred(t, plain("x", "x"))},
	} {
		if _, err := api.FillVolume(ctx, "data", c.path, c.tar, client.FillOptions{}); cay.KindOf(err) != cay.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := api.ExportVolume(ctx, "data", "/l/etc/passwd"); err == nil {
		t.Error("a link that leads out is followed")
	}
}

func TestVolumeSnapshots(t *testing.T) {
	needsRoot(t)
	w := servertest.Start(t)
	api, ctx := w.Client(), t.Context()
	_, err := api.CreateVolume(ctx, client.NewVolume{Name: "data", SizeMB: 64})
	noError(t, err)
	write := func(text string) {
		t.Helper()
		_, err := api.FillVolume(ctx, "data", "/", tarred(t, plain("f", text)), client.FillOptions{})
		noError(t, err)
	}
	write("before")
	s, err := api.SnapshotVolume(ctx, "data", "first")
	noError(t, err)
	if _, err := api.SnapshotVolume(ctx, "data", "first"); cay.KindOf(err) != cay.Conflict {
		t.Errorf("a name that is taken: %v", err)
	}
	if _, err := api.SnapshotVolume(ctx, "data", "a/b"); cay.KindOf(err) != cay.Invalid {
		t.Errorf("a name that is none: %v", err)
	}
	unnamed, err := api.SnapshotVolume(ctx, "data", "")
	noError(t, err)
	write("after")
	_, err = api.ResizeVolume(ctx, "data", 128)
	noError(t, err)
	_, err = api.CloneVolume(ctx, "data", "then", "first")
	noError(t, err)
	_, err = api.CloneVolume(ctx, "data", "now", "")
	noError(t, err)
	v, err := api.RestoreVolume(ctx, "data", "first")
	noError(t, err)
	if v.SizeMB != 128 {
		t.Errorf("it has %d MB", v.SizeMB)
	}
	for ref, want := range map[string]string{"data": "before", "then": "before", "now": "after"} {
		if got := textOf(t, api, ref, "/f"); got != want {
			t.Errorf("%s has %q", ref, got)
		}
	}
	list, err := api.VolumeSnapshots(ctx, "data")
	noError(t, err)
	if len(list) != 2 || list[0] != s || list[1].Name != unnamed.Name {
		t.Errorf("snapshots: %+v", list)
	}

	// A volume with snapshots stays; a server that starts anew keeps both.
	if err := api.DeleteVolume(ctx, "data"); cay.KindOf(err) != cay.Conflict || !strings.Contains(err.Error(), "2 snapshots") {
		t.Errorf("deleted with snapshots: %v", err)
	}
	w.Stop()
	w.Start()
	api = w.Client()
	_, err = api.RestoreVolume(ctx, "data", s.ID)
	noError(t, err)
	for _, one := range list {
		noError(t, api.RemoveVolumeSnapshot(ctx, "data", one.Name))
	}
	for _, ref := range []string{"data", "then", "now"} {
		noError(t, api.DeleteVolume(ctx, ref))
	}
	if all, err := api.Volumes(ctx); err != nil || len(all) != 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
}

// A volume that a sandbox mounts, running or paused, is neither deleted nor
// restored, and the refusal names the sandbox.
func TestVolumesInUse(t *testing.T) {
	needsRoot(t)
	w := servertest.Start(t)
	api, ctx := w.Client(), t.Context()
	_, err := api.CreateVolume(ctx, client.NewVolume{Name: "data", SizeMB: 64})
	noError(t, err)
	_, err = api.SnapshotVolume(ctx, "data", "first")
	noError(t, err)
	box, err := api.Create(ctx, client.CreateOptions{Timeout: time.Hour, Volumes: []client.VolumeMount{{Name: "data", Path: "/mnt/data"}}})
	noError(t, err)
	for range 2 {
		if _, err := api.RestoreVolume(ctx, "data", "first"); cay.KindOf(err) != cay.Conflict || !strings.Contains(err.Error(), box.ID) {
			t.Errorf("restored: %v", err)
		}
		if err := api.DeleteVolume(ctx, "data"); cay.KindOf(err) != cay.Conflict || !strings.Contains(err.Error(), box.ID) {
			t.Errorf("deleted: %v", err)
		}
		v, err := api.Volume(ctx, "data")
		noError(t, err)
		if len(v.Sandboxes) != 1 || v.Sandboxes[0] != box.ID {
			t.Errorf("mounted by %v", v.Sandboxes)
		}
		_ = api.Pause(ctx, box.ID) // the second time, it is paused already
	}
	noError(t, box.Kill(ctx))
	_, err = api.RestoreVolume(ctx, "data", "first")
	noError(t, err)
}
