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
		"bin/manifest":      {Data: []byte("engine abc\n01  cay-runsc\n02  gvisor_sentry\n03  cay-agent\n04  cay-mcp-gateway\n")},
		"bin/cay-runsc":     {Data: []byte("runsc")},
		"bin/gvisor_sentry": {Data: []byte("sentry")},
		"bin/cay-agent":     {Data: []byte("agent")},

		"bin/cay-mcp-gateway": {Data: []byte("gateway")},
	}
	data := t.TempDir()
	for range 2 { // again finds it all there
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
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func TestUnpackWithout(t *testing.T) {
	_, err := unpack(fstest.MapFS{"bin/README": {}}, t.TempDir())
	if cay.KindOf(err) != cay.Unavailable {
		t.Fatalf("unpack of nothing: %v", err)
	}
}
