package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/cay-run/cay/client"
)

func TestVolumeSizes(t *testing.T) {
	for text, want := range map[string]int{
		"10GB": 10240, "10G": 10240, "10 GiB": 10240, "500mb": 500, "1.5 GB": 1536, "2TB": 2 << 20, "16M": 16,
	} {
		if got, err := volumeSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "10", "GB", "-1GB", "0GB", "10KB", "1e9GB", "0x10G", "1_0G", "NaNGB", "InfG", "99999TB", "10GB10", "1,5GB"} {
		if got, err := volumeSize(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}

func TestPathsInVolumes(t *testing.T) {
	for text, want := range map[string][2]string{
		"data:":      {"data", "/"},
		"data:/a/b/": {"data", "/a/b"},
		"data:a":     {"data", "/a"},
		"data:../a":  {"data", "/a"},
		"data:a:b":   {"data", "/a:b"},
		"0190a1b2-0000-4000-8000-000000000000:/x": {"0190a1b2-0000-4000-8000-000000000000", "/x"},
		"./data:x": {"", "./data:x"},
		"/tmp/a:b": {"", "/tmp/a:b"},
		"data":     {"", "data"},
		"-":        {"", "-"},
		"s3.x:y":   {"", "s3.x:y"},
	} {
		if ref, file := inVolume(text); ref != want[0] || file != want[1] {
			t.Errorf("%q: %q, %q", text, ref, file)
		}
	}
}

func TestVolumeTexts(t *testing.T) {
	env := stand(t, map[string]string{
		"GET /cay/v1/volumes":                 `[{"volumeID":"v1","name":"data","sizeMB":10240,"createdAt":"2026-01-01T00:00:00Z"}]`,
		"GET /cay/v1/volumes/v1":              `{"volumeID":"v1","name":"data","sizeMB":10240,"createdAt":"2026-01-01T00:00:00Z"}`,
		"GET /cay/v1/volumes/data":            `{"volumeID":"v1","name":"data","sizeMB":10240,"createdAt":"2026-01-01T00:00:00Z","usage":{"usedBytes":5000000,"sizeBytes":10737418240,"files":3,"storedBytes":6000000},"sandboxes":["i1","i2"]}`,
		"POST /cay/v1/volumes/data/snapshots": `{"snapshotID":"s1","name":"before","volumeID":"v1","sizeMB":10240,"createdAt":"2026-01-01T00:00:00Z"}`,
		"GET /cay/v1/volumes/data/snapshots":  `[{"snapshotID":"s1","name":"before","volumeID":"v1","sizeMB":10240,"createdAt":"2026-01-01T00:00:00Z"}]`,
		"POST /cay/v1/volumes":                `{"volumeID":"v2","name":"new","sizeMB":16,"createdAt":"2026-01-01T00:00:00Z"}`,
		"GET /volumes/v1":                     `{"volumeID":"v1","name":"data","token":"t"}`,
		"GET /volumecontent/v1/dir":           `[{"name":"f","path":"/d/f","type":"file","size":1500,"mode":420,"uid":1000,"gid":1000,"mtime":"2026-01-01T00:00:00Z"},{"name":"l","path":"/d/l","type":"symlink","target":"f","mode":511,"mtime":"2026-01-01T00:00:00Z"},{"name":"e","path":"/d/e","type":"directory","mode":493,"mtime":"2026-01-01T00:00:00Z"}]`,
		"GET /volumecontent/v1/path":          `{"name":"d","path":"/d","type":"directory"}`,
	})
	for _, c := range []struct {
		args string
		want []string
	}{
		{"list", []string{"NAME", "data", "10 GB", "v1"}},
		{"info data", []string{"used", "5.0 MB of 10.7 GB", "files    3", "on disk  6.0 MB", "mounted  i1 i2"}},
		{"snapshot data before", []string{"before\n"}},
		{"snapshots data", []string{"before", "s1"}},
		{"create new --size 16MB", []string{"v2\n"}},
		{"ls data:/d", []string{"-rw-r--r--", "1000:1000", "1.5 kB", "f\n", "l -> f\n", "drwxr-xr-x", "e/\n"}},
		{"list --json", []string{`"volumeID": "v1"`}},
		{"ls --json data:/d", []string{`"target": "f"`}},
	} {
		code, out, errs := invoke(t, env, append([]string{"volume"}, strings.Fields(c.args)...)...)
		if code != 0 {
			t.Errorf("%s: %d, %s", c.args, code, errs)
		}
		for _, text := range c.want {
			if !strings.Contains(out, text) {
				t.Errorf("%s prints no %q: %s", c.args, text, out)
			}
		}
	}
	for _, c := range []struct{ args, want string }{
		{"rm data:/d", "-r"},
		{"rm data:/", "root"},
		{"rm data", "VOLUME:path"},
		{"cp a b", "in a volume"},
		{"cp /tmp data:/x", "cp -r"},
		{"cp data:/d /tmp/x", "cp -r"},
		{"cp -r data:/d data:/d/e", "into itself"},
		{"cp -r data:/d v1:/d/e", "into itself"},
		{"create x --size 10", "500MB"},
		{"delete a b --snapshot s", "single"},
		{"fill data /none/such", "cannot read"},
		{"fill data s3://", "s3://BUCKET"},
		{"info none", "not found"},
	} {
		code, _, errs := invoke(t, env, append([]string{"volume"}, strings.Fields(c.args)...)...)
		if code == 0 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: %d, %s", c.args, code, errs)
		}
	}
}

func TestVolumeMounts(t *testing.T) {
	got, err := volumeMounts([]string{"data:/a", "data/x/y:/b:ro"})
	want := []client.VolumeMount{{Name: "data", Path: "/a"}, {Name: "data", Path: "/b", SubPath: "x/y", ReadOnly: true}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"", "data", "data:a", ":/a", "data:ro", "/x:/a"} {
		if _, err := volumeMounts([]string{text}); err == nil {
			t.Errorf("%q is a mount", text)
		}
	}
}
