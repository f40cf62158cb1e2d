// Package spawn starts the host's programs without the secrets of this process: its environment
// has the keys of the records, the bucket and the registries, and programs may run scripts of others
// and tell their environment in what they write.
package spawn

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// passed are the variables that programs get: where things are, the way to the network, and words.
var passed = []string{
	"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LANG", "LANGUAGE", "APT_CONFIG",
	"SSL_CERT_FILE", "SSL_CERT_DIR",
	"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy",
	"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY",
}

// Env is the environment of programs, with variables more.
func Env(more ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return !slices.Contains(passed, name) && !strings.HasPrefix(name, "LC_")
	})
	return append(env, more...)
}

// Command is exec.CommandContext with that environment.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = Env()
	return cmd
}
