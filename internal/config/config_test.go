package config

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cay-run/cay"
)

func TestLoadDefaults(t *testing.T) {
	got, err := Load([]string{"HOME=/root", "CAY_TEST_ANYTHING=1", "CAY_E2E_PORT=7170"})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, Default()) {
		t.Errorf("Load of nothing = %+v, want the defaults", got)
	}
}

func TestLoadEnvironmentWinsOverFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cay.yaml")
	text := "listen: 0.0.0.0:80\nnetwork: 10.9.0.0/16\ndomain: example.org\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Load([]string{"CAY_CONFIG=" + file, "CAY_LISTEN=127.0.0.1:9", "CAY_METRICS_LISTEN=[::1]:9100"})
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Listen = "127.0.0.1:9"
	want.Network = netip.MustParsePrefix("10.9.0.0/16")
	want.Domain = "example.org"
	want.MetricsListen = "[::1]:9100"
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Load = %+v, want %+v", got, want)
	}
}

func TestLoadNamesWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "CAY_CONFIG=" + path
	}
	for _, tc := range []struct{ env, want string }{
		{"CAY_LISTN=x", "CAY_LISTN"},
		{"CAY_LISTEN=7070", "listen"},
		{"CAY_LISTEN=:http", "listen"},
		{"CAY_METRICS_LISTEN=x", "metrics"},
		{"CAY_NETWORK=fd00::/64", "network"},
		{"CAY_NETWORK=10.0.0.1/16", "network"},
		{"CAY_NETWORK=10.0.0.0/30", "/28"},
		{"CAY_NETWORK=ten", "CAY_NETWORK"},
		{"CAY_NETWORK_CLOSED=ten", "CAY_NETWORK_CLOSED"},
		{"CAY_NETWORK_CLOSED=198.51.100.7/24", "network closed"},
		{"CAY_NETWORK_NAME=toolong", "toolong"},
		{"CAY_NETWORK_NAME=a-b", "a-b"},
		{"CAY_DATA_DIR=data", "data"},
		{"CAY_DATA_DIR=/run/cay", "same"},
		{"CAY_RUN_DIR=", "run"},
		{"CAY_DOMAIN=http://x", "domain"},
		{"CAY_DOMAIN=example.org:https", "domain"},
		{"CAY_DOMAIN=:443", "domain"},
		{"CAY_TLS=yes", "yes"},
		{"CAY_DATABASE_URL=mysql://x", "postgres://"},
		{"CAY_DATABASE_STANDBY=true", "database standby"},
		{"CAY_TLS=files", "certificate"},
		{"CAY_TLS_CERT=/c.pem", "key"},
		{"CAY_TLS_KEY=/k.pem", "certificate"},
		{"CAY_TLS=acme", "domain"},
		{"CAY_ACME_TSIG=key", "key"},
		{"CAY_PATHS=yes", "yes"},
		{"CAY_DATA=/var/cay", "CAY_DATA"},
		{"CAY_PACKAGE_CACHE=10", "10GiB"},
		{"CAY_PACKAGE_CACHE=1MiB", "256MiB"},
		{"CAY_CACHE=40", "40GiB"},
		{"CAY_CACHE=0%", "1% to 100%"},
		{"CAY_CACHE=101%", "1% to 100%"},
		{"CAY_CACHE=40GiB", "there is no bucket"},
		{"CAY_CONFIG=" + filepath.Join(dir, "none"), "CAY_CONFIG"},
		{file("unknown.yaml", "lisen: x"), "lisen"},
		{file("type.yaml", "listen: [1]"), "type.yaml"},
	} {
		_, err := Load([]string{tc.env})
		if cay.KindOf(err) != cay.Invalid || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("Load(%s) = %v, want an invalid error that names %s", tc.env, err, tc.want)
		}
	}
}

func TestEdge(t *testing.T) {
	for _, tt := range []struct {
		env   []string
		mode  string
		paths bool
	}{
		{nil, TLSLocal, true},
		{[]string{"CAY_LISTEN=localhost:80"}, TLSLocal, true},
		{[]string{"CAY_LISTEN=[::1]:80"}, TLSLocal, true},
		{[]string{"CAY_LISTEN=:7070"}, TLSOff, true},
		{[]string{"CAY_LISTEN=192.0.2.7:7070"}, TLSOff, true},
		{[]string{"CAY_TLS=off"}, TLSOff, true},
		{[]string{"CAY_DOMAIN=box.example.com"}, TLSOff, false},
		{[]string{"CAY_TLS_CERT=/c.pem", "CAY_TLS_KEY=/k.pem"}, TLSFiles, true},
		{[]string{"CAY_TLS=local", "CAY_DOMAIN=cay.test:8443", "CAY_TLS_NAMES=box,192.0.2.7"}, TLSLocal, false},
		{[]string{"CAY_TLS=acme", "CAY_DOMAIN=cay.test", "CAY_ACME_DNS=exec:/bin/true", "CAY_PATHS=on"}, TLSACME, true},
		{[]string{"CAY_PATHS=off"}, TLSLocal, false},
	} {
		c, err := Load(tt.env)
		if err != nil || c.TLSMode() != tt.mode || c.PathForm() != tt.paths {
			t.Errorf("%v: %v, TLS %s, paths %v", tt.env, err, c.TLSMode(), c.PathForm())
		}
	}
}

func TestAVariableThatIsMistyped(t *testing.T) {
	for name, want := range map[string]string{
		"CAY_DATA":   "did you mean CAY_DATA_DIR",
		"CAY_LISEN":  "did you mean CAY_LISTEN",
		"CAY_ZZZZZZ": "unset it; `cay server --help`",
	} {
		_, err := Load([]string{name + "=x"})
		var wrong *cay.Error
		if !errors.As(err, &wrong) || !strings.HasPrefix(wrong.Hint, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
