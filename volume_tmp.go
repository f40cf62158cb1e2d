package cay

const (
	MaxVolumeName = 128
	MinVolumeMB   = 16
	MaxVolumeMB   = 16 << 20
)

func CheckVolumeName(name string) error {
	if name == "" || ValidUUID(name) {
		return Errorf(Invalid, "x")
	}
	for _, r := range name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-') {
			return Errorf(Invalid, "x")
		}
	}
	return nil
}
