package rest_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"os"
	"runtime"
	"strings"
	"testing"
)

// savedImage is an image of one file, as docker save writes it.
func savedImage(t *testing.T, content string) string {
	t.Helper()
	pack := func(files ...[2]string) string {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, f := range files {
			if err := w.WriteHeader(&tar.Header{Name: f[0], Size: int64(len(f[1])), Mode: 0o644}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(f[1])); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	layer := pack([2]string{"greeting", content})
	sum := sha256.Sum256([]byte(layer))
	config, err := json.Marshal(object{
		"os": "linux", "architecture": runtime.GOARCH, "config": object{"Env": []string{"A=1"}, "User": "app"},
		"rootfs": object{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		t.Fatal(err)
	}
	manifest := `[{"Config":"c.json","RepoTags":["acme/app:1"],"Layers":["layer.tar"]}]`
	return pack([2]string{"manifest.json", manifest}, [2]string{"c.json", string(config)}, [2]string{"layer.tar", layer})
}

// progress reads an answer that comes line by line and returns its last.
func progress(t *testing.T, r reply) object {
	t.Helper()
	if r.status != 200 {
		t.Fatalf("status %d: %s", r.status, r.text)
	}
	lines := strings.Split(strings.TrimSpace(r.text), "\n")
	var last object
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
		t.Fatal(err)
	}
	return last
}

func TestImages(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("unpacking gives files their owners, which needs root")
	}
	w := newWorld(t, "")
	// Larger than other bodies may be.
	archive := savedImage(t, strings.Repeat("hello ", 1<<19))
	got := progress(t, w.call("POST", "/cay/v1/images/import", archive))["image"].(object)
	const full = "index.docker.io/acme/app:1"
	if got["names"].([]any)[0] != full || got["user"] != "app" || got["imported"] != true || got["size"] != float64(6<<19) {
		t.Errorf("imported %v", got)
	}
	list := want[[]object](t, w.call("GET", "/cay/v1/images", ""), 200)
	if len(list) != 1 || list[0]["digest"] != got["digest"] {
		t.Errorf("the list is %v", list)
	}
	path := "/cay/v1/images/" + url.PathEscape("acme/app:1")
	if one := want[object](t, w.call("GET", path, ""), 200); one["digest"] != got["digest"] {
		t.Errorf("found %v", one)
	}
	if again := progress(t, w.call("POST", "/cay/v1/images/pull", `{"name":"acme/app:1"}`)); again["image"].(object)["digest"] != got["digest"] {
		t.Errorf("pulled %v", again)
	}

	// Another team has none of it.
	if list := want[[]object](t, w.callAs(w.other, "GET", "/cay/v1/images", ""), 200); len(list) != 0 {
		t.Errorf("another team sees %v", list)
	}
	wantError(t, w.callAs(w.other, "GET", path, ""), 404, "no image")
	wantError(t, w.callAs(w.other, "DELETE", path, ""), 404, "no image")

	want[any](t, w.call("DELETE", path, ""), 204)
	wantError(t, w.call("GET", path, ""), 404, "no image")
	wantError(t, w.call("DELETE", path, ""), 404, "no image")
}

func TestImagesRefused(t *testing.T) {
	w := newWorld(t, "")
	for name, test := range map[string]struct {
		path, body string
		code       float64
		says       string
	}{
		"no archive":             {"/cay/v1/images/import", "hello", 400, "not a good tar"},
		"a bad name":             {"/cay/v1/images/pull", `{"name":"No Name"}`, 400, "not the name of an image"},
		"this machine's network": {"/cay/v1/images/pull", `{"name":"127.0.0.1:1/x"}`, 403, "private network"},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := progress(t, w.call("POST", test.path, test.body))["error"].(object)
			if e == nil || e["code"] != test.code || !strings.Contains(e["message"].(string), test.says) {
				t.Errorf("got %v", e)
			}
		})
	}
	wantError(t, w.call("POST", "/cay/v1/images/pull", `{"name":"x","registry":{"type":"none"}}`), 400, "registry.type")
}
