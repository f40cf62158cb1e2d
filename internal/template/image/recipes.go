package image

import (
	"strings"

	"github.com/cay-run/cay/internal/guest"
)

// Hostname is what every sandbox is called, for ever: it is part of memory
// snapshots, and sudo wants it to resolve.
const Hostname = "cay"

// bundlePath is where a guest finds the authorities it trusts.
const bundlePath = "/etc/ssl/certs/ca-certificates.crt"

// trustVars are the variables by which programs with a bundle of their own
// learn of the system's.
var trustVars = []string{
	"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
	"PIP_CERT", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
}

// Env is the environment of every template made here.
func Env() map[string]string {
	env := map[string]string{"LANG": "C.UTF-8"}
	for _, name := range trustVars {
		env[name] = bundlePath
	}
	return env
}

// SystemFiles are the files by which any root becomes a sandbox's.
func SystemFiles() []File {
	return []File{
		{Path: "/etc/hostname", Mode: 0o644, Data: []byte(Hostname + "\n")},
		{Path: "/etc/hosts", Mode: 0o644, Data: []byte(hosts)},
		{Path: "/etc/machine-id", Mode: 0o644, Data: nil},
		{Path: "/etc/sudoers.d/user", Mode: 0o440, Data: []byte(sudoers)},
		// An empty /tmp would become a RAM disk outside the overlay.
		{Path: "/tmp/.cay", Mode: 0o644, Data: nil},
		{Path: "/var/tmp/.cay", Mode: 0o644, Data: nil},
	}
}

// Base is a small Debian for an agent: shells, git, compilers, Python, node.
func Base() Recipe {
	return Recipe{
		Name:  "base",
		Suite: "bookworm",
		Packages: strings.Fields(`
			bash bzip2 ca-certificates coreutils curl file git iproute2
			iputils-ping jq less lsof ncurses-bin net-tools netcat-openbsd
			openssh-client procps psmisc rsync sudo tar tzdata unzip vim-tiny
			wget xz-utils zip
			build-essential pkg-config
			python3 python3-dev python3-pip python3-venv python-is-python3`),
		Node:  "24",
		NPM:   "11",
		Files: append(SystemFiles(), File{Path: "/etc/gitconfig", Mode: 0o644, Data: []byte(gitConfig)}),
		Steps: []Step{
			{Name: "make the user", Script: makeUser},
			{Name: "tidy up", Script: tidy},
		},
	}
}

// The packages of the interpreter's Python: the libraries that most code for
// data begins with, in E2B's versions and in newer ones.
const (
	kernel    = `ipykernel==7.4.0 ipython==9.18.1 `
	libraries = `numpy==2.3.5 pandas==2.2.3 matplotlib==3.10.9 pillow==12.3.0`
	newer     = `numpy==2.4.6 pandas==3.1.1 matplotlib==3.11.2 pillow==13.0.0`
)

// CodeInterpreterPython is Base with Jupyter's kernel for Python and the few
// libraries that most code for data begins with.
func CodeInterpreterPython() Recipe {
	base := Base()
	return Recipe{
		Name:   "code-interpreter-python",
		From:   &base,
		Files:  []File{{Path: startUpPath, Mode: 0o755, Data: []byte(startUp)}},
		Python: strings.Fields(kernel + libraries),
		Steps: []Step{
			{Name: "compile Python modules", Script: compile},
			{Name: "build the font cache", Script: fontCache},
			{Name: "open the way to " + startUpPath, Script: "chmod 0711 /root\nchmod 0755 $(dirname " + startUpPath + ")"},
			{Name: "tidy up", Script: tidy},
		},
	}
}

// CodeInterpreter adds the other languages, and the libraries for data that
// people expect to be there.
func CodeInterpreter() Recipe {
	python := CodeInterpreterPython()
	return Recipe{
		Name: "code-interpreter-v1",
		From: &python,
		// Java's compiler and console are in its headless runtime.
		Packages: strings.Fields(`
			r-base-core r-cran-jsonlite r-cran-repr r-cran-irdisplay
			openjdk-17-jre-headless ` + scripts),
		Python: strings.Fields(`
			altair beautifulsoup4 bokeh ipywidgets kaleido==0.2.1 librosa nbformat nltk numba
			opencv-python-headless openpyxl plotly==6.0.1 pytest python-docx
			requests scikit-learn scipy seaborn spacy sympy xarray xlrd`),
		Steps: []Step{
			{Name: "compile Python modules", Script: compile},
			{Name: "let charts draw every script", Script: chartFonts + fontCache},
			{Name: "archive Java's console", Script: javaClasses},
			{Name: "tidy up", Script: tidy},
		},
	}
}

// CodeInterpreterNewer is CodeInterpreter with the newer libraries for data.
func CodeInterpreterNewer() Recipe {
	pinned := CodeInterpreter()
	return Recipe{
		Name:   "code-interpreter-newer",
		From:   &pinned,
		Python: strings.Fields(newer),
		Steps: []Step{
			{Name: "compile Python modules", Script: compile},
			{Name: "let charts draw every script", Script: chartFonts + fontCache},
			{Name: "tidy up", Script: tidy},
		},
	}
}

// startUpPath is the start command by which Dockerfiles that begin with E2B's
// image of the interpreter have it start, as root or as another user.
const startUpPath = "/root/.jupyter/start-up.sh"

// The agent serves the interpreter since before the start command, which is
// done with waiting for it, and stays as E2B's does.
const startUp = `#!/bin/sh
until curl -sf -o /dev/null http://localhost:49999/health; do sleep 0.2; done
exec sleep infinity
`

// Git refuses a repository of another user. In a sandbox there is none to guard
// against: the user is root by sudo, and files that a client or a build step wrote
// as root are the user's too.
const gitConfig = `[safe]
	directory = *
`

const hosts = `127.0.0.1 localhost ` + Hostname + `
::1 localhost ip6-localhost ip6-loopback
`

// sudo drops the environment; programs under it must trust the same.
var sudoers = `user ALL=(ALL:ALL) NOPASSWD: ALL
Defaults env_keep += "` + strings.Join(trustVars, " ") + `"
`

// The user owns /usr/local, so that pip and npm install for all users without
// sudo, and a kernel that runs already finds packages that pip installed. The
// user's own site directory exists for the same reason: Python looks for it once.
const makeUser = `
useradd --create-home --uid 1000 --user-group --shell /bin/bash user
site=$(python3 -c 'import sysconfig as s; v = s.get_config_var("py_version_short"); print("/home/user/.local/lib/python%s/site-packages" % v)')
mkdir -p "$site" /home/user/.local/bin
chown -R user:user /home/user
mkdir -p /.cay /run/e2b
chmod 1777 /tmp /var/tmp
update-alternatives --quiet --install /usr/bin/vim vim /usr/bin/vim.tiny 10
`

const compile = `
cd /usr/local/lib/python3*/dist-packages
# Tests of libraries are a tenth of the size and are not run here.
for library in numpy scipy pandas sklearn matplotlib mpl_toolkits sympy numba nltk xarray spacy; do
  [ ! -d $library ] || find $library -type d -name tests -prune -exec rm -rf {} +
done
# A module that does not compile is one for another Python: not an error.
python3 -m compileall -q -j 0 . || true
`

// Java's virtual machine loads the classes of its console and compiler from
// an archive of what this little program used, in half the time.
const javaClasses = `
mkdir -p $(dirname ` + guest.JavaClasses + `)
cat >/tmp/Console.java <<'EOF'
import jdk.jshell.JShell;
import jdk.jshell.execution.LocalExecutionControlProvider;

public class Console {
    public static void main(String[] args) {
        try (JShell shell = JShell.builder().executionEngine(new LocalExecutionControlProvider(), null).build()) {
            for (String code : new String[] {"import java.util.*;", "int twice(int n) { return 2 * n; }", "twice(1)", "no("}) {
                shell.sourceCodeAnalysis().analyzeCompletion(code);
                shell.eval(code);
            }
        }
        System.exit(0);
    }
}
EOF
java -XX:+UseSerialGC -Xlog:disable -XX:ArchiveClassesAtExit=` + guest.JavaClasses + ` /tmp/Console.java
chmod 0644 ` + guest.JavaClasses + `
`

// scripts are the packages of fonts for what DejaVu lacks, 134 MB: Chinese,
// Japanese and Korean in the first, Indian scripts, Thai and many more in the other.
const scripts = "fonts-noto-cjk fonts-noto-core"

// chartFonts names them to matplotlib, which takes a character from the first font
// of this list that has it.
const chartFonts = `
cat >>"$(python3 -c 'import matplotlib; print(matplotlib.get_data_path())')/matplotlibrc" <<'END'

font.family: sans-serif, Noto Sans CJK JP, Noto Sans Devanagari, Noto Sans Thai, Noto Sans Bengali, Noto Sans Gujarati, Noto Sans Gurmukhi, Noto Sans Kannada, Noto Sans Malayalam, Noto Sans Oriya, Noto Sans Sinhala, Noto Sans Tamil, Noto Sans Telugu, Noto Sans Khmer, Noto Sans Lao, Noto Sans Myanmar, Noto Sans Ethiopic, Noto Sans Symbols2
END
`

const fontCache = `
rm -rf /home/user/.cache/matplotlib
runuser -u user -- env HOME=/home/user MPLBACKEND=agg python3 -c 'import matplotlib.pyplot'
`

const tidy = `
chown -R user:user /usr/local
rm -rf /var/cache/apt/* /var/cache/debconf/*-old /var/lib/apt/lists/* /var/log/* /root/.cache /root/.npm
mkdir -p /var/cache/apt/archives/partial /var/lib/apt/lists/partial
`
