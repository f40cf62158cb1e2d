package config

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Every field has one variable, whose key is the field's name in the file.
func TestVariablesAndKeys(t *testing.T) {
	fields := map[string]string{}
	collect(reflect.ValueOf(Config{}), fields)
	var keys []string
	for _, v := range Variables {
		if v.Key != "" {
			keys = append(keys, v.Key)
		}
	}
	slices.Sort(keys)
	if want := slices.Sorted(maps.Keys(fields)); !slices.Equal(keys, want) {
		t.Errorf("the variables' keys are\n%v, the fields'\n%v", keys, want)
	}
}

// Everything that is wrong is told at once, wherever it stands.
func TestReadTellsAllProblems(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cay.yaml")
	text := "listen: 0.0.0.0:80\nlisen: x\nteamSandboxes: many\ndomain: http://x\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := []string{"CAY_CONFIG=" + file, "CAY_LISTN=x", "CAY_NETWORK=ten", "CAY_TLS=yes", "CAY_METRICS_LISTEN=x", "CAY_PATHS=perhaps", "CAY_RUN_DIR=run"}
	c, _, problems := Read(environ)
	for _, want := range []string{"lisen", "many", "http://x", "CAY_LISTN", "CAY_NETWORK", `"yes"`, "metrics listen", "perhaps", `"run"`} {
		if n := len(slices.DeleteFunc(slices.Clone(problems), func(err error) bool { return !strings.Contains(err.Error(), want) })); n != 1 {
			t.Errorf("%d problems name %s: %v", n, want, problems)
		}
	}
	if len(problems) != 9 {
		t.Errorf("%d problems: %v", len(problems), problems)
	}
	if c.Listen != "0.0.0.0:80" || c.Network != Default().Network {
		t.Errorf("what is right is not in force: %+v", c)
	}
	if _, err := Load(environ); err == nil || !strings.Contains(err.Error(), "CAY_LISTN") {
		t.Errorf("Load = %v, want the first problem", err)
	}
}

// Each setting says where it comes from; none shows a password.
func TestSettingsSayWhereTheyComeFrom(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cay.yaml")
	text := "# ours\nlisten: 0.0.0.0:80\ndomain: example.org\nnetworkOpen: [10.8.0.0/24, 192.168.1.7/32]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, settings, problems := Read([]string{
		"CAY_CONFIG=" + file, "CAY_LISTEN=127.0.0.1:9", "CAY_PACKAGE_HOSTS=pypi.org=http://me:hidden@mirror.lan/pypi,b=https://key@c/",
	})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	got := map[string]Setting{}
	for _, s := range settings {
		got[s.Key] = s
	}
	if len(got) != len(Variables)-2 {
		t.Errorf("%d settings of %d variables", len(got), len(Variables))
	}
	for key, want := range map[string][2]string{
		"listen":           {"127.0.0.1:9", "CAY_LISTEN"},
		"domain":           {"example.org", file + ":3"},
		"networkOpen":      {"10.8.0.0/24,192.168.1.7/32", file + ":4"},
		"network":          {"10.201.0.0/16", "default"},
		"buildStepTimeout": {"1h0m0s", "default"},
		"teamSandboxes":    {"0", "default"},
		"tls":              {"off", "default"},
		"paths":            {"off", "default"},
		"packageHosts":     {"pypi.org=http://***@mirror.lan/pypi,b=https://***@c/", "CAY_PACKAGE_HOSTS"},
	} {
		if s := got[key]; s.Value != want[0] || s.From != want[1] {
			t.Errorf("%s = %q from %s, want %q from %s", key, s.Value, s.From, want[0], want[1])
		}
	}
}

// A file that is no YAML is one problem.
func TestBrokenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cay.yaml")
	if err := os.WriteFile(file, []byte("listen: [\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, problems := Read([]string{"CAY_CONFIG=" + file}); len(problems) != 1 {
		t.Errorf("%v", problems)
	}
}

// No form of a database's address shows its password.
func TestDatabasePasswordIsMasked(t *testing.T) {
	for _, at := range []string{
		"postgres://cay:s3cret@db/cay", "postgres://cay@db/cay?password=s3cret", "postgresql://cay:s3%40cret@db1,db2/cay?sslmode=require", "postgres://cay:s3cret@[db/cay",
		"mysql://cay:s3cret@db",
	} {
		_, all, problems := Read([]string{"CAY_DATABASE_URL=" + at})
		for _, s := range all {
			if strings.Contains(s.Value, "s3") {
				t.Errorf("%s shows %s", at, s.Value)
			}
		}
		for _, err := range problems {
			if strings.Contains(err.Error(), "s3") {
				t.Errorf("%s is refused with %s", at, err)
			}
		}
	}
}
