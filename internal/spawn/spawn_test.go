package spawn

import (
	"slices"
	"strings"
	"testing"
)

// A program is told the way to the network and nothing that opens something.
func TestProgramsGetNoSecrets(t *testing.T) {
	for name, value := range map[string]string{
		"CAY_DATABASE_URL": "postgres://cay:secret@db/cay", "CAY_ADMIN_TOKEN": "secret", "AWS_SECRET_ACCESS_KEY": "secret",
		"AWS_SESSION_TOKEN": "secret", "E2B_API_KEY": "secret", "PGPASSWORD": "secret", "OTHER": "secret",
		"https_proxy": "http://proxy:3128", "NO_PROXY": "10.0.0.0/8", "LC_ALL": "C.UTF-8", "TMPDIR": "/var/tmp",
	} {
		t.Setenv(name, value)
	}
	out, err := Command(t.Context(), "env").Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(out))
	if strings.Contains(string(out), "secret") {
		t.Errorf("a program gets %q", lines)
	}
	for _, want := range []string{"https_proxy=http://proxy:3128", "NO_PROXY=10.0.0.0/8", "LC_ALL=C.UTF-8", "TMPDIR=/var/tmp"} {
		if !slices.Contains(lines, want) {
			t.Errorf("a program does not get %s: %q", want, lines)
		}
	}
}
