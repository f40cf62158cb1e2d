package build

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/erofs"
	"github.com/cay-run/cay/internal/template/image"
)

// releases are what systems say of themselves, as they do.
var releases = map[string]string{
	"NAME=\"Debian GNU/Linux\"\nID=debian\n":                             "debian",
	"ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n":                          "debian",
	"NAME=\"Fedora Linux\"\nID=fedora\nVERSION_ID=43\n":                  "fedora",
	"NAME=\"Rocky Linux\"\nID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"": "fedora",
	"ID=\"amzn\"\nID_LIKE=\"centos rhel fedora\"\n":                      "fedora",
	"ID=\"ol\"\nID_LIKE=\"fedora\"\n":                                    "fedora",
	"NAME=\"Alpine Linux\"\nID=alpine\n":                                 "alpine",
	"NAME='postmarketOS'\nID='postmarketos'\nID_LIKE='alpine'\n":         "alpine",
	"NAME=\"Arch Linux\"\nID=arch\n":                                     "arch",
	"ID=manjaro\nID_LIKE=arch\n":                                         "arch",
	"ID=plan9\n":                                                         "",
	"":                                                                   "",
}

func TestFamilies(t *testing.T) {
	for text, want := range releases {
		dir := t.TempDir()
		write(t, dir, "usr/lib/os-release", text, 0o644)
		write(t, dir, "etc/passwd", "", 0o644)
		if err := os.Symlink("../usr/lib/os-release", filepath.Join(dir, "etc/os-release")); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "image")
		if err := image.FromTree(t.Context(), dir, file); err != nil {
			t.Fatal(err)
		}
		tree, err := erofs.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := familyOf(tree)
		if got != want || want == "" && cay.KindOf(err) != cay.Invalid {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	}
}

// system is the root of an image of a family: busybox, and where it has one,
// the useradd that this machine has. Package managers are stand-ins that know
// one command line, for no index of theirs can be asked.
type system struct {
	*testing.T
	dir string
}

func newSystem(t *testing.T, merged, useradd bool) system {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("NOT TESTED HERE: it takes root and busybox-static (scripts/setup all)")
	}
	s := system{t, t.TempDir()}
	for _, dir := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/local/share/deep", "etc", "dev", "home", "tmp", "var/tmp", "root"} {
		if err := os.MkdirAll(filepath.Join(s.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if !merged {
			err = os.Mkdir(filepath.Join(s.dir, dir), 0o755)
		} else {
			err = os.Symlink("usr/"+dir, filepath.Join(s.dir, dir))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.copy(busybox, "/bin/busybox")
	for _, name := range strings.Fields("sh cat chmod chown cp cut echo env find grep id mkdir mv rm test [") {
		s.link("/bin/busybox", "bin/"+name)
	}
	s.write("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", 0o644)
	s.write("etc/group", "root:x:0:\n", 0o644)
	s.write("etc/shadow", "root:*:1::::::\n", 0o600)
	s.write("etc/gshadow", "root:*::\n", 0o600)
	s.write("etc/ssl/certs/ca-certificates.crt", "ours", 0o644)
	s.write("usr/local/share/ca-certificates/own.crt", "own", 0o644)
	if useradd {
		s.program("useradd")
		s.write("etc/login.defs", "UID_MIN 1000\nGID_MIN 1000\n", 0o644)
	} else {
		s.link("/bin/busybox", "usr/sbin/adduser")
		s.link("/bin/busybox", "usr/sbin/addgroup")
	}
	return s
}

func write(t *testing.T, dir, name, text string, mode os.FileMode) {
	t.Helper()
	name = filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func (s system) write(name, text string, mode os.FileMode) { write(s.T, s.dir, name, text, mode) }

func (s system) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(s.dir, name)) // nothing is an answer too
	return string(text)
}

func (s system) link(to, name string) {
	s.Helper()
	if err := os.Symlink(to, filepath.Join(s.dir, name)); err != nil {
		s.Fatal(err)
	}
}

func (s system) copy(from, to string) {
	s.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		s.Fatal(err)
	}
	s.write(to, string(text), 0o755)
}

// program copies a program of this machine, with the libraries that it loads.
func (s system) program(name string) {
	s.Helper()
	file, err := exec.LookPath(name)
	if err != nil {
		s.Skipf("NOT TESTED HERE: %s is missing", name)
	}
	s.copy(file, filepath.Join("usr/sbin", name))
	f, err := elf.Open(file)
	if err != nil {
		s.Fatal(err)
	}
	defer f.Close()
	out, err := exec.Command("ldd", file).Output()
	if err != nil {
		s.Fatal(err)
	}
	for word := range strings.FieldsSeq(string(out)) {
		if filepath.IsAbs(word) {
			s.copy(word, word)
		}
	}
}

// manager makes a package manager that does what it is told in one way alone.
func (s system) manager(name, arguments string) {
	s.write("usr/bin/"+name, `#!/bin/sh
echo "`+name+` $*" >>/asked
[ "$*" = "`+arguments+`" ] || exit 1
cp /bin/busybox /usr/bin/bash
cp /bin/busybox /usr/bin/sudo
`, 0o755)
}

// provision runs the script as a build does, but for the sandbox.
func (s system) provision(family string) string {
	s.Helper()
	return s.run(provision, "provision", family)
}

func (s system) run(script string, args ...string) string {
	s.Helper()
	cmd := exec.Command("/bin/sh", append([]string{"-c", script}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: s.dir}
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + defaultPath}
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// check looks at what every sandbox relies on.
func (s system) check(uid string) {
	s.Helper()
	users := strings.Split(strings.TrimSpace(s.read("etc/passwd")), "\n")
	i := slices.IndexFunc(users, func(line string) bool { return strings.HasPrefix(line, "user:") })
	if i < 0 {
		s.Fatalf("there is no user: %q", users)
	}
	if f := strings.Split(users[i], ":"); len(f) != 7 || f[2] != uid || f[5] != "/home/user" || f[6] != "/bin/bash" {
		s.Errorf("the user is %q, want %s", users[i], uid)
	}
	for _, name := range []string{"home/user", "code", "usr/local/bin", "usr/local/share/deep", "tmp"} {
		var st syscall.Stat_t
		if err := syscall.Stat(filepath.Join(s.dir, name), &st); err != nil {
			s.Error(err)
		} else if own := name == "home/user" || name == "code"; own && st.Uid < 1000 || !own && st.Mode&0o777 != 0o777 {
			s.Errorf("%s is of %d and has mode %o", name, st.Uid, st.Mode)
		}
	}
	if got := s.read("etc/ssl/certs/ca-certificates.crt"); got != "ours" {
		s.Errorf("the bundle of authorities is %q", got)
	}
	for _, name := range []string{"bin/bash", "usr/bin/bash"} {
		if info, err := os.Stat(filepath.Join(s.dir, name)); err == nil && info.Mode()&0o111 != 0 {
			return
		}
	}
	s.Error("there is no bash")
}

func TestEachFamilyIsProvisioned(t *testing.T) {
	for name, c := range map[string]struct {
		family, manager, arguments, asked string
		merged, useradd                   bool
	}{
		"debian":            {"debian", "apt-get", "install -q -y --no-install-recommends bash sudo", "apt-get update -q\n", true, true},
		"alpine":            {"alpine", "apk", "add --no-cache bash sudo", "", false, false},
		"fedora":            {"fedora", "dnf", "install -q -y bash sudo", "", true, true},
		"a small fedora":    {"fedora", "microdnf", "install -y bash sudo", "", true, true},
		"an old enterprise": {"fedora", "yum", "install -q -y bash sudo", "", true, true},
		"arch":              {"arch", "pacman", "-Sy --noconfirm --needed bash sudo", "", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t, c.merged, c.useradd)
			s.manager(c.manager, c.arguments)
			if c.manager == "apt-get" { // it asks first
				s.write("usr/bin/apt-get", strings.Replace(s.read("usr/bin/apt-get"), "[ ", `[ "$*" != "update -q" ] || exit 0; [ `, 1), 0o755)
			}
			if said := s.provision(c.family); strings.Contains(said, "not installed") {
				t.Error(said)
			}
			if want := c.asked + c.manager + " " + c.arguments + "\n"; s.read("asked") != want {
				t.Errorf("asked %q, want %q", s.read("asked"), want)
			}
			s.check("1000")
			if s.read("usr/bin/sudo") == "" {
				t.Error("there is no sudo")
			}
			// An image that has all installs nothing, and keeps its user.
			before := s.read("etc/passwd")
			s.provision(c.family)
			if again := s.read("asked"); strings.Count(again, c.arguments) != 1 || s.read("etc/passwd") != before {
				t.Errorf("the second time: asked %q, users %q", again, s.read("etc/passwd"))
			}
		})
	}
}

func TestProvisioningWithoutPackages(t *testing.T) {
	for name, useradd := range map[string]bool{"with useradd": true, "with busybox": false} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t, true, useradd)
			s.write("etc/passwd", s.read("etc/passwd")+"node:x:1000:1000::/:/bin/sh\n", 0o644)
			s.write("etc/group", s.read("etc/group")+"node:x:1000:\n", 0o644)
			if said := s.provision("arch"); !strings.Contains(said, "package sources do not answer: bash sudo") {
				t.Errorf("it said %q", said)
			}
			s.check("1001")
			if !strings.HasPrefix(s.read("bin/bash"), "#!/bin/sh\n") {
				t.Error("bash is not what stands in for it")
			}
		})
	}
	s := newSystem(t, false, false)
	for _, name := range []string{"adduser", "addgroup"} {
		if err := os.Remove(filepath.Join(s.dir, "usr/sbin", name)); err != nil {
			t.Fatal(err)
		}
	}
	s.provision("alpine")
	s.check("1000")
}

// Each family keeps the authorities that it trusts elsewhere, and has a program
// that makes its bundle of them, which must not be the last to write ours.
func TestAuthoritiesOfFamilies(t *testing.T) {
	const spoil = "#!/bin/sh\necho \"$0 $*\" >>/told\necho theirs >/etc/ssl/certs/ca-certificates.crt\n"
	for program, c := range map[string]struct{ family, told string }{
		"update-ca-certificates": {"debian", "/usr/bin/update-ca-certificates \n"},
		"update-ca-trust":        {"fedora", "/usr/bin/update-ca-trust \n"},
		"trust":                  {"arch", "/usr/bin/trust anchor --store /usr/local/share/ca-certificates/own.crt\n"},
	} {
		s := newSystem(t, true, false)
		s.write("etc/pki/ca-trust/source/anchors/.keep", "", 0o644)
		s.write("usr/bin/"+program, spoil, 0o755)
		s.provision(c.family)
		s.check("1000")
		if got := s.read("told"); got != c.told {
			t.Errorf("%s: %q, want %q", program, got, c.told)
		}
		if anchor := s.read("etc/pki/ca-trust/source/anchors/own.crt"); (anchor == "own") != (program == "update-ca-trust") {
			t.Errorf("%s: the anchor is %q", program, anchor)
		}
	}
}

func TestProvisionIsOneShellKnows(t *testing.T) {
	for _, shell := range []string{"dash", "bash", "busybox"} {
		args := []string{"-n"}
		if shell == "busybox" {
			args = []string{"sh", "-n"}
		}
		file, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("NOT TESTED HERE: %s is missing", shell)
			continue
		}
		cmd := exec.Command(file, args...)
		cmd.Stdin = bytes.NewBufferString(provision)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
	}
}
