package services

import (
	"os"
	"strconv"
	"strings"
)

// kinds are the suffixes that unit names have.
var kinds = []string{"service", "target", "socket", "timer", "path", "mount", "automount", "swap", "slice", "scope", "device"}

// kindOf is the suffix of a unit's name, or "".
func kindOf(name string) string {
	i := strings.LastIndexByte(name, '.')
	for _, kind := range kinds {
		if i >= 0 && name[i+1:] == kind {
			return kind
		}
	}
	return ""
}

// fullName is a unit's name as a person may shorten it.
func fullName(name string) string {
	if kindOf(name) == "" {
		return name + ".service"
	}
	return name
}

// validName reports whether a name can be a unit's: it becomes part of paths.
func validName(name string) bool {
	if name == "" || len(name) > 255 || name[0] == '.' || name[0] == '-' {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune(`:-_.\@`, rune(c)) {
			return false
		}
	}
	return kindOf(name) != ""
}

// instanceOf cuts the name of a template's instance: "a@b.service" is an
// instance b of "a@.service".
func instanceOf(name string) (template, instance string) {
	stem := strings.TrimSuffix(name, "."+kindOf(name))
	prefix, instance, ok := strings.Cut(stem, "@")
	if !ok || instance == "" {
		return "", ""
	}
	return prefix + "@." + kindOf(name), instance
}

// unescapeName reverses systemd-escape(1).
func unescapeName(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '-':
			out.WriteByte('/')
		case s[i] == '\\' && i+3 < len(s) && s[i+1] == 'x':
			n, err := strconv.ParseUint(s[i+2:i+4], 16, 8)
			if err != nil || n == 0 {
				out.WriteByte(s[i])
				continue
			}
			out.WriteByte(byte(n))
			i += 3
		default:
			out.WriteByte(s[i])
		}
	}
	return out.String()
}

// expander fills in the specifiers of systemd.unit(5) for a unit.
func expander(name string) func(string) string {
	stem := strings.TrimSuffix(name, "."+kindOf(name))
	prefix, instance, _ := strings.Cut(stem, "@")
	host, _ := os.Hostname() // a name that is not known is empty
	values := map[byte]string{
		'n': name, 'N': stem, 'p': prefix, 'P': unescapeName(prefix), 'i': instance, 'I': unescapeName(instance),
		'j': prefix[strings.LastIndexByte(prefix, '-')+1:],
		't': "/run", 'S': "/var/lib", 'C': "/var/cache", 'L': "/var/log", 'E': "/etc", 'T': "/tmp", 'V': "/var/tmp",
		'H': host, 'u': "root", 'U': "0", 'g': "root", 'G': "0", 'h': "/root", 's': "/bin/sh", '%': "%",
	}
	return func(s string) string {
		if !strings.Contains(s, "%") {
			return s
		}
		var out strings.Builder
		for i := 0; i < len(s); i++ {
			if s[i] == '%' && i+1 < len(s) {
				if value, ok := values[s[i+1]]; ok {
					out.WriteString(value)
					i++
					continue
				}
			}
			out.WriteByte(s[i])
		}
		return out.String()
	}
}
