package embedded

import (
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/cay-run/cay"
)

func TestUnpack(t *testing.T) {
	files := fstest.MapFS{
		"bin/manifest":      {Data: []byte("engine abc\n01  cay-runsc\n02  gvisor_sentry\n05  cay-page-reader\n03  cay-agent\n04  cay-mcp-gateway\n")},
		"bin/cay-runsc":     {Data: []byte("runsc")},
		"bin/gvisor_sentry": {Data: []byte("sentry")},
		"bin/cay-agent":     {Data: []byte("agent")},

		"bin/cay-page-reader": {Data: []byte("reader")},
		"bin/cay-mcp-gateway": {Data: []byte("gateway")},
	}
	data := t.TempDir()
	reader := filepath.Join(data, "engines/abc/gvisor-bin/checkpointgofer")
	for i := range 4 { // again finds it all there
		switch i { // but a reader of before, which is no part of the engine's hash
		case 2:
			noError(t, os.WriteFile(reader, []byte("older"), 0o755))
		case 3:
			noError(t, os.Remove(reader))
		}
		b, err := unpack(files, data)
		if err != nil {
			t.Fatal(err)
		}
		if b.EngineHash != "abc" || b.AgentDigest != "03" || b.GatewayDigest != "04" {
			t.Fatalf("unpacked %+v", b)
		}
		for path, want := range map[string]string{
			filepath.Join(b.EngineDir, "abc/cay-runsc"):                "runsc",
			filepath.Join(b.EngineDir, "abc/gvisor-bin/gvisor_sentry"): "sentry",
			reader:        "reader",
			b.AgentPath:   "agent",
			b.GatewayPath: "gateway",
		} {
			text, err := os.ReadFile(path)
			if err != nil || string(text) != want {
				t.Errorf("%s holds %q, %v", path, text, err)
			}
			if info, err := os.Stat(path); err == nil && info.Mode().Perm() != 0o755 {
				t.Errorf("%s has mode %s", path, info.Mode())
			}
		}
	}
	left, err := filepath.Glob(filepath.Join(data, "*", ".new-*"))
	more, _ := filepath.Glob(filepath.Join(data, "engines/abc/*", ".new-*"))
	left = append(left, more...)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestUnpackWithout(t *testing.T) {
	_, err := unpack(fstest.MapFS{"bin/README": {}}, t.TempDir())
	if cay.KindOf(err) != cay.Unavailable {
		t.Fatalf("unpack of nothing: %v", err)
	}
}
