#!/bin/sh
# Compile Portal.java into this folder: by javac, else by the compiler that Tomcat brings for its
# own pages, for which a JRE is enough. Words: the JVM, the class path.
java=$1 jars=$2
for jar in $(echo "$jars" | tr : ' '); do
    [ -e "$jar" ] || { echo "$jar is missing: apt install libtomcat10-java"; exit 1; }
done
if command -v javac >/dev/null; then
    exec javac --release 17 -nowarn -cp "$jars" -d . Portal.java
fi
for jar in /usr/share/java/*jdt*core*.jar /usr/share/java/*ecj*.jar; do
    [ -e "$jar" ] && compilers="$compilers:$jar"
done
[ -n "$compilers" ] || { echo "there is no Java compiler: apt install openjdk-17-jdk-headless"; exit 1; }
exec "$java" -cp "$compilers" org.eclipse.jdt.internal.compiler.batch.Main \
    -proc:none -nowarn -source 17 -target 17 -cp "$jars" -d . Portal.java
