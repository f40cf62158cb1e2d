package proc

import "testing"

func FuzzLookPath(f *testing.F) {
	f.Add("ls", "/bin:relative::/usr/bin")
	f.Add("", "")
	f.Add("a/../b", "/")
	f.Fuzz(func(t *testing.T, cmd, path string) {
		if got, err := lookPath(cmd, path); err == nil && got == "" {
			t.Errorf("lookPath(%q, %q) found nothing and said so nowhere", cmd, path)
		}
	})
}
