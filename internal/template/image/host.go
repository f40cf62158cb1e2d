package image

import (
	"bytes"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cay-run/cay/internal/machine/disk"
)

// hostBundles are where systems keep the authorities they trust, as PEM.
var hostBundles = []string{
	bundlePath,
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// Where a tree has what is the host's.
const (
	localAuthorities = "/usr/local/share/ca-certificates"
	pipPath          = "/etc/pip.conf"
	npmPath          = "/usr/local/etc/npmrc"
)

// HostFiles are the files that give programs in a guest the host's authorities,
// and its package indexes where the host has others than the usual. A file that
// is secret or makes sense on the host alone stays out.
func HostFiles() ([]File, error) {
	bundle, err := readFirst(hostBundles)
	if err != nil {
		return nil, disk.Error(err, "read the certificate authorities of the host").
			WithHint("apt-get install ca-certificates")
	}
	files := []File{
		{Path: bundlePath, Mode: 0o644, Data: bundle},
		{Path: pipPath, Mode: 0o644, Data: pipConfig()},
		{Path: npmPath, Mode: 0o644, Data: npmConfig()},
	}
	// Those that the host's administrator added: update-ca-certificates in
	// the guest must not lose them.
	local, _ := filepath.Glob(filepath.Join(localAuthorities, "*.crt"))
	slices.Sort(local)
	for _, path := range local {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, disk.Error(err, "read %s", path)
		}
		files = append(files, File{Path: path, Mode: 0o644, Data: data})
	}
	return files, nil
}

// Trust adds an authority, as PEM, to those that HostFiles has guests trust.
func Trust(files []File, name string, authority []byte) []File {
	files = slices.Clone(files)
	for i, f := range files {
		if f.Path == bundlePath {
			files[i].Data = slices.Concat(bytes.TrimRight(f.Data, "\n"), []byte("\n"), authority)
		}
	}
	return append(files, File{Path: localAuthorities + "/" + name + ".crt", Mode: 0o644, Data: authority})
}

// ResolverFile makes a guest ask one DNS server, whose address is the same in
// every sandbox.
func ResolverFile(address string) File {
	return File{Path: "/etc/resolv.conf", Mode: 0o644, Data: []byte("nameserver " + address + "\noptions timeout:2 attempts:3\n")}
}

func readFirst(paths []string) ([]byte, error) {
	var errs []error
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err == nil && bytes.Contains(data, []byte("BEGIN CERTIFICATE")) {
			return data, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return nil, errors.Join(append(errs, errors.New("no bundle found"))...)
}

func pipConfig() []byte {
	out := "[global]\ncert = " + bundlePath + "\ndisable-pip-version-check = true\nroot-user-action = ignore\n"
	host := globalSettings("/etc/pip.conf")
	for _, key := range []string{"index-url", "extra-index-url"} {
		value := host[key]
		if v := os.Getenv("PIP_" + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))); v != "" {
			value = v
		}
		if shareable(value) {
			out += key + " = " + value + "\n"
		}
	}
	return []byte(out)
}

func npmConfig() []byte {
	out := "cafile=" + bundlePath + "\nupdate-notifier=false\nfund=false\n"
	if registry := npmRegistry(); shareable(registry) {
		out += "registry=" + registry + "\n"
	}
	return []byte(out)
}

// npmRegistry is the registry that the host's npm is told to use, if any.
func npmRegistry() string {
	home, _ := os.UserHomeDir()
	for _, path := range []string{filepath.Join(home, ".npmrc"), "/usr/local/etc/npmrc", "/usr/etc/npmrc", "/etc/npmrc"} {
		if registry := globalSettings(path)["registry"]; registry != "" {
			return registry
		}
	}
	return ""
}

// globalSettings reads "key = value" lines of a configuration file, outside
// sections or in [global].
func globalSettings(path string) map[string]string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	out := map[string]string{}
	global := true
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			global = line == "[global]"
		}
		if key, value, ok := strings.Cut(line, "="); ok && global {
			out[strings.TrimSpace(key)] = strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return out
}

// shareable reports whether an index may be told to guests: an address on the
// web, without a password, that is not this machine.
func shareable(index string) bool {
	u, err := url.Parse(index)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.User != nil {
		return false
	}
	host := u.Hostname()
	return host != "" && host != "localhost" && !strings.HasPrefix(host, "127.") && host != "::1"
}
