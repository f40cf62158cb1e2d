package enginetest

import (
	"archive/tar"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// The capabilities of an instance, and those that one with Docker has beyond.
var (
	always = []int{
		unix.CAP_AUDIT_WRITE, unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH,
		unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL, unix.CAP_MKNOD, unix.CAP_NET_BIND_SERVICE,
		unix.CAP_SETFCAP, unix.CAP_SETGID, unix.CAP_SETPCAP, unix.CAP_SETUID, unix.CAP_SYS_CHROOT,
		unix.CAP_SYS_NICE, unix.CAP_SYS_PTRACE,
	}
	withDocker = append(always[:len(always):len(always)], unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_SYS_ADMIN)
)

const (
	storeFile  = guest.DockerStore + "/note"
	cgroupFile = "/sys/fs/cgroup/memory/memory.limit_in_bytes"
)

func (s *suite) startDocker(t *testing.T, at *slot) cay.InstanceID {
	t.Helper()
	spec := s.bootSpec(cay.NewInstanceID(), at)
	spec.Docker = true
	at.address(t)
	s.endWith(t, spec.ID)
	must(t, s.Boot(t.Context(), spec))
	at.expect(t, "ok", "/health")
	return spec.ID
}

// docker compares an instance that may run Docker with one that may not: what its
// root may do, where its disk ends, and what is kept of its store.
func (s *suite) docker(t *testing.T) {
	plain, at := s.slots[0], s.slots[1]
	s.start(t, plain)
	plain.mayDo(t, always)
	plain.refused(t, "no such file", "/read", "path", cgroupFile)
	plain.refused(t, "no such file", "/read", "path", storeFile)
	plain.refused(t, "not permitted", "/mount", "path", "/srv")

	id := s.startDocker(t, at)
	at.mayDo(t, withDocker)
	if text, status := at.ask(t, "/read", "path", cgroupFile); status != http.StatusOK {
		t.Errorf("cgroups inside: %s", text)
	}
	at.expect(t, "", "/mount", "path", "/srv")
	s.dockerDisk(t, id, at)

	at.expect(t, "", "/write", "path", storeFile, "text", "kept")
	at.expect(t, "1", "/count")
	memory, from := s.snapshot(t, id, true)
	files, dir := s.saveFiles(t, id)
	for _, snap := range []cay.Snapshot{memory, files} {
		if snap.Format != cay.DockerFormat {
			t.Errorf("a snapshot of kind %s has format %d, want %d", snap.Kind, snap.Format, cay.DockerFormat)
		}
	}
	s.dockerFiles(t, id, dir)
	must(t, s.Kill(t.Context(), id))

	id = s.resume(t, memory, from, at)
	at.expect(t, "2", "/count")
	at.expect(t, "kept", "/read", "path", storeFile)
	at.mayDo(t, withDocker)
	at.refused(t, "no space left", "/fill", "path", guest.DockerStore+"/rest", "mb", "40")
	if again, _ := s.snapshot(t, id, false); again.Format != cay.DockerFormat {
		t.Errorf("a snapshot of what was restored has format %d, want %d", again.Format, cay.DockerFormat)
	}

	spec := s.bootSpec(cay.NewInstanceID(), at)
	spec.From, spec.Args, spec.Docker = dir, nil, true
	at.address(t)
	s.endWith(t, spec.ID)
	must(t, s.Boot(t.Context(), spec))
	at.expect(t, "1", "/count")
	at.expect(t, "kept", "/read", "path", storeFile)
}

// dockerDisk fills the store to its end: the disk's other half is the root's.
func (s *suite) dockerDisk(t *testing.T, id cay.InstanceID, at *slot) {
	t.Helper()
	const part = guest.DockerStore + "/part"
	at.expect(t, "", "/fill", "path", part, "mb", "20")
	u, err := s.Usage(t.Context(), id)
	must(t, err)
	size, err := s.SaveSize(t.Context(), id, true)
	must(t, err)
	if u.DiskUsed < 20<<20 || size < 20<<20 || u.DiskMax != int64(limits.DiskMB)<<20 {
		t.Errorf("after 20 MB in the store %d of %d bytes of disk are used, a save has %d", u.DiskUsed, u.DiskMax, size)
	}
	at.refused(t, "no space left", "/fill", "path", guest.DockerStore+"/rest", "mb", "40")
	at.expect(t, "", "/fill", "path", "/tmp/part", "mb", "20")
	at.refused(t, "no space left", "/fill", "path", "/tmp/rest", "mb", "40")
	for _, path := range []string{part, guest.DockerStore + "/rest", "/tmp/part", "/tmp/rest"} {
		at.expect(t, "", "/remove", "path", path)
	}
}

// dockerFiles looks for the store's file in a snapshot of files, where it is, and in
// a layer, where it is not.
func (s *suite) dockerFiles(t *testing.T, id cay.InstanceID, dir string) {
	t.Helper()
	name, found := strings.TrimPrefix(storeFile, "/"), ""
	must(t, s.ReadFiles(dir, func(h *tar.Header, body io.Reader) error {
		if h.Name != name {
			return nil
		}
		text, err := io.ReadAll(body)
		found = string(text)
		return err
	}))
	if found != "kept" {
		t.Errorf("%s in a snapshot of files is %q", name, found)
	}
	changes, err := s.Changes(t.Context(), id)
	must(t, err)
	defer changes.Close()
	for in := tar.NewReader(changes); ; {
		h, err := in.Next()
		if err == io.EOF {
			return
		}
		must(t, err)
		if h.Name == name {
			t.Errorf("a layer has %s", name)
		}
	}
}

// mayDo compares the capabilities that a guest's root can have with those wanted.
func (s *slot) mayDo(t *testing.T, want []int) {
	t.Helper()
	var mask uint64
	for _, c := range want {
		mask |= 1 << c
	}
	text, _ := s.ask(t, "/read", "path", "/proc/self/status")
	for _, set := range []string{"CapBnd", "CapPrm", "CapEff"} {
		_, rest, _ := strings.Cut(text, set+":")
		got, err := strconv.ParseUint(strings.Fields(rest + " -")[0], 16, 64)
		if err != nil || got != mask {
			t.Errorf("%s of the guest is %s, want %s (%v)", set, fmt.Sprintf("%016x", got), fmt.Sprintf("%016x", mask), err)
		}
	}
}
