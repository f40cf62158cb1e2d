package build

import (
	"strings"
	"testing"
)

func TestAnchors(t *testing.T) {
	for name, want := range map[string]bool{
		"usr/local/share/ca-certificates/own.crt":         true,
		"usr/local/share/ca-certificates/deep/own.crt":    true,
		"etc/pki/ca-trust/source/anchors/own.pem":         true,
		"usr/local/share/ca-certificates/README":          false,
		"usr/local/share/ca-certificates":                 false,
		"home/user/usr/local/share/ca-certificates/a.crt": false,
		"etc/ssl/certs/own.crt":                           false,
	} {
		if isAnchor(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func pem(name string) string {
	return "-----BEGIN CERTIFICATE-----\n" + name + "\n-----END CERTIFICATE-----\n"
}

// Certificates that a step added are in the bundle, with all that was in it
// before, whatever tool the family has.
func TestAddedCertificatesAreTrusted(t *testing.T) {
	const marked = "# cay: certificates of this sandbox begin\n"
	for name, c := range map[string]struct{ tool, script string }{
		"none":                     {"", ""},
		"Debian's":                 {"update-ca-certificates", "#!/bin/sh\nmkdir -p /etc/ssl/certs\n{ echo '" + pem("mozilla") + "'; cat /usr/local/share/ca-certificates/*.crt; } >/etc/ssl/certs/ca-certificates.crt\n"},
		"Fedora's, another bundle": {"update-ca-trust", "#!/bin/sh\ntrue\n"},
		"one that fails":           {"update-ca-certificates", "#!/bin/sh\nexit 1\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t, true, false)
			for _, program := range strings.Fields("awk mktemp sort true") {
				s.link("/bin/busybox", "bin/"+program)
			}
			if c.tool != "" {
				s.write("usr/bin/"+c.tool, c.script, 0o755)
			}
			s.write("etc/ssl/certs/ca-certificates.crt", "# of the host\n"+pem("mozilla")+pem("host")+marked+pem("this sandbox alone")+"# cay: certificates of this sandbox end\n", 0o644)
			s.write("usr/local/share/ca-certificates/own.crt", strings.ReplaceAll(pem("added"), "\n", "\r\n"), 0o644)
			s.write("etc/pki/ca-trust/source/anchors/other.pem", pem("anchor")+pem("anchor 2"), 0o644)
			for range 2 { // the second time changes nothing
				s.run(trustAnchors)
				got := s.read("etc/ssl/certs/ca-certificates.crt")
				for _, one := range []string{"mozilla", "host", "added", "anchor", "anchor 2"} {
					if strings.Count(got, pem(one)) != 1 {
						t.Errorf("%q is there %d times in\n%s", one, strings.Count(got, pem(one)), got)
					}
				}
				if strings.Contains(got, "this sandbox alone") || strings.Contains(got, "\r") {
					t.Errorf("the bundle is\n%s", got)
				}
			}
			if left := s.read("tmp"); left != "" {
				t.Error(left)
			}
		})
	}
}
