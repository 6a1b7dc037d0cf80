"""Certificates for tests, made by openssl."""
import subprocess


def make_certificate(folder, name, subject, authority=None, kind="DNS"):
    """At folder/name.pem, with its key; of its own authority, or of another's. kind: of the subject, DNS or IP."""
    paths = {part: str(folder / f"{name}.{part}") for part in ("key", "csr", "pem", "ext")}

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", paths["key"])
    if authority is None:
        openssl("req", "-x509", "-new", "-key", paths["key"], "-subj", f"/CN={subject}", "-days", "2", "-out", paths["pem"])
    else:
        (folder / f"{name}.ext").write_text(f"subjectAltName={kind}:{subject}")
        openssl("req", "-new", "-key", paths["key"], "-subj", f"/CN={subject}", "-out", paths["csr"])
        openssl("x509", "-req", "-in", paths["csr"], "-CA", authority["pem"], "-CAkey", authority["key"], "-CAcreateserial",
                "-days", "2", "-extfile", paths["ext"], "-out", paths["pem"])
    return paths
