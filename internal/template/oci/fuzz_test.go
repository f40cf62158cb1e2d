package oci

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cay-run/cay"
)

func hashOf(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

// archiveOf packs what an archive of an image says of it: docker save's form
// without an index, else an OCI layout.
func archiveOf(t testing.TB, index, manifest, config, layer []byte) []byte {
	if len(index) == 0 {
		return layerOf(t, item{name: "manifest.json", body: string(manifest)},
			item{name: "config.json", body: string(config)}, item{name: "layer.tar", body: string(layer)})
	}
	items := []item{{name: "oci-layout", body: `{"imageLayoutVersion":"1.0.0"}`}, {name: "index.json", body: string(index)}}
	for _, blob := range [][]byte{manifest, config, layer} {
		items = append(items, item{name: "blobs/sha256/" + hashOf(blob), body: string(blob)})
	}
	return layerOf(t, items...)
}

// For every description of an image in an archive, the import is whole or a
// client's error, and leaves nothing but the image.
func FuzzImport(f *testing.F) {
	layer := layerOf(f, item{name: "f", body: "1"})
	config := fmt.Appendf(nil, `{"os":"linux","architecture":%q,"config":{"Env":["A=1"],"User":"nobody","Healthcheck":{"Test":["CMD","x"]},`+
		`"OnBuild":["RUN x"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}`, runtime.GOARCH, hashOf(layer))
	f.Add([]byte(nil), []byte(`[{"Config":"config.json","RepoTags":["a:1"],"Layers":["layer.tar"]}]`), config, layer)
	f.Add([]byte(nil), []byte(`[{"Config":"../../config.json","RepoTags":["a:1"],"Layers":["/etc/passwd"]}]`), config, layer)
	blob := func(kind string, data []byte) string {
		return fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.%s","size":%d,"digest":"sha256:%s"}`, kind, len(data), hashOf(data))
	}
	manifest := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":` + blob("config.v1+json", config) +
		`,"layers":[` + blob("layer.v1.tar", layer) + `]}`)
	f.Add([]byte(`{"schemaVersion":2,"manifests":[`+blob("manifest.v1+json", manifest)+`]}`), manifest, config, layer)
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","size":1,"digest":"sha256:../../../../etc/passwd"}]}`),
		manifest, config, layer)
	f.Fuzz(func(t *testing.T, index, manifest, config, layer []byte) {
		needRoot(t)
		world := t.TempDir()
		dir := filepath.Join(world, "images")
		opts := Options{Limits: Limits{Bytes: 1 << 20, Entries: 500}}
		s, err := Open(dir, opts)
		if err != nil {
			t.Fatal(err)
		}
		img, err := s.Import(t.Context(), bytes.NewReader(archiveOf(t, index, manifest, config, layer)), "named:1", nil)
		most := 1
		switch cay.KindOf(err) {
		case "":
		case cay.Invalid, cay.Exhausted, cay.NotFound:
			most = 0
		default:
			t.Errorf("%v is a %s", err, cay.KindOf(err))
		}
		if left, _ := os.ReadDir(world); len(left) != 1 {
			t.Errorf("beside the images appeared %v", left)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, tempPrefix+"*")); len(left) != 0 {
			t.Errorf("%v is left", left)
		}
		again, err := Open(dir, opts)
		if err != nil {
			t.Fatal(err)
		}
		if all := again.List(); len(all) > most {
			t.Errorf("there are %+v", all)
		}
		if most == 0 || t.Failed() {
			return
		}
		if found, err := again.Find("named:1"); err != nil || !reflect.DeepEqual(found.Config, img.Config) || found.Digest != img.Digest {
			t.Errorf("%+v became %+v, %v", img, found, err)
		}
	})
}

// A registry that answers with nonsense is not one that cannot be reached, for
// which a build would put in another image.
func TestNonsenseIsNoSilence(t *testing.T) {
	for _, text := range []string{"7", `{"config":[]}`} {
		_, err := v1.ParseConfigFile(strings.NewReader(text))
		if err == nil || cay.KindOf(pullError(err, "x")) != cay.Invalid {
			t.Errorf("%s: %v", text, pullError(err, "x"))
		}
	}
}
